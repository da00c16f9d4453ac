"""Adds a check before the queue: the parts of a run are built once on this host, or --no-check.

- hooks: starts it in a process of its own, and shows what it found like mistakes in the spec.
- finding: what that process found.
"""
