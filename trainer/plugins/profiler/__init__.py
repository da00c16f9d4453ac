"""Traces of torch's profiler for the steps and ranks of the spec's section `profile`.

- hooks: the callback of a rank, which traces.
"""
