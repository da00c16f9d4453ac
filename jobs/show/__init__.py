"""What people see of their runs in the terminal: states, logs, progress, keys.

- status: lists the runs and their states, or one run in detail.
- words: states, causes, nodes and times in plain words.
- table: prints rows as a folded table, stacked lines or plain columns.
- logs: shows or follows the logs of one rank over all attempts, or the first error.
- rank_logs: finds and reads these logs.
- explain: what a key of the spec means, its value and where that came from.
- chosen: what the kit will choose for `auto` and for unset keys.
- tensorboard: how to look at a run's TensorBoard files from a laptop.
- live_progress: the progress line of a local run.
"""
