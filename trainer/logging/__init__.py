"""What is logged, and where.

- reporter: metrics.jsonl and the log lines.
- progress: progress.json, overwritten in place.
- first_lines: device, model and main values at the start of the log.
- reproducibility: versions and hardware, and whether a resume is bitwise.
"""
