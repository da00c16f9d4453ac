"""Sends the values of `metrics.jsonl` to TensorBoard and to Weights & Biases: section `log`.

- hooks: a callback for each tracker, with a thread of its own on rank 0.
"""
