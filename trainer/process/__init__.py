"""The process group, and the values that all ranks must share.

- context: ranks, world size, device; start of the process group; gather and broadcast.
- events: the timeline of this rank.
- rank_process: this process as a rank, and the files that it may write.
- run_handle: which run and attempt this is; rank 0 finds it and broadcasts it.
- step_agreement: all ranks stop after the same step.
- stop: the flag that a stop signal sets.
- watcher: what may watch a rank: its pulse, and calls at each step, report and save.
"""
