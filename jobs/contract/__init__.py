"""What passes between processes: spec, files of a run, records, checkpoints, kinds of an end.

The trainer and the plugins import of jobs/ this folder and base. Standard library only.
"""
