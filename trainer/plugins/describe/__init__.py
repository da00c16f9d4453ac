"""Describes a training: its first lines in the log, and what the bits of its result depend on.

- hooks: the callback of a rank, which does both before the first step.
- first_lines: device, data, model and main values, at the start of the log.
- reproducibility: versions and hardware, and whether a resume is bitwise.
- sample_digests: a few samples of each data set, compared with those of rank 0 and earlier starts.
"""
