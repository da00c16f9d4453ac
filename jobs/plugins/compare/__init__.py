"""Adds the command compare: whether two runs ended with equal bits.

- compare: finds where they differ, and in which keys of the spec.
"""
