"""Adds to the log what people report of a training.

- hooks: tokens/s, MFU, and the use of rank 0's GPU.
"""
