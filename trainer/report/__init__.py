"""What a training logs, and where.

- reporter: metrics.jsonl, the log lines, the final result.
- progress: the progress file, overwritten in place.
- trackers: TensorBoard and Weights & Biases.
- profiling: torch's profiler for chosen steps.
- environment: versions and hardware, and whether a resume is bitwise.
"""
