"""Keeps the code that torch.compile makes for the next attempt, and times each compilation.

- hooks: the callback of a rank.
"""
