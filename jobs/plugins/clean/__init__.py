"""Adds the command clean: deletes runs that are over, and frozen code that no run names.

- clean: lists them, or deletes them.
"""
