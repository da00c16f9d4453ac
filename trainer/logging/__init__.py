"""What is logged, and where.

- reporter: metrics.jsonl and the log lines.
- progress: progress.json, overwritten in place.
- trackers: TensorBoard and Weights & Biases.
- profiling: torch's profiler for chosen steps.
- first_lines: device, model and main values at the start of the log.
- reproducibility: versions and hardware, and whether a resume is bitwise.
"""
