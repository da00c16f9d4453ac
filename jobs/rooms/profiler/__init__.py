"""Checks the section `profile` of a spec; trainer/rooms/profiler has what this room adds.

- hooks: the checks.
"""
