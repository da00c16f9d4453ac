"""Checks the section `profile` of a spec; trainer/plugins/profiler has what this plugin adds.

- hooks: the checks.
"""
