"""Sends the values of `metrics.jsonl` to TensorBoard and to Weights & Biases: section `log`.

- hooks: the callback of a rank, which starts the trackers on rank 0.
- trackers: the two trackers, each on a thread of its own.
"""
