"""A new run begins with weights from files: train.init_from.

- hooks: loads them, before the first step of a run.
- initial: reads weights from safetensors files and checkpoints, and loads them on all ranks.
"""
