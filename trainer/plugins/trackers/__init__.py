"""Sends the values of `metrics.jsonl` to trackers: log.trackers.

- hooks: a thread on rank 0 for each tracker.
- built_in: those of the kit, and what a tracker gets.
- __main__: gives a run that was held or cancelled its end state in its trackers.
"""
