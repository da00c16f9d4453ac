"""Adds hooks.checkpoint and hooks.end: shell lines of a user beside a training.

- hooks: when they run, what they get, and a line of the log for each.
"""
