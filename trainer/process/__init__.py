"""The process group, and the values that all ranks must share.

- context: ranks, world size, device; start of the process group; gather and broadcast.
- events: the timeline of this rank.
- run_handle: this process as a rank, and its run, which rank 0 finds and broadcasts.
- step_agreement: all ranks stop after the same step.
- stop: the flag that a stop signal sets.
- watcher: what may watch a rank: its pulse, and calls at each step, report and save.
"""
