"""Keeps the code that torch.compile makes for the next attempt.

- hooks: the callback of a rank.
"""
