"""Adds notify.command: a shell line that runs once, after the end of a run is recorded.

- hooks: runs it.
"""
