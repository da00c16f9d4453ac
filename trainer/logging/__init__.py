"""What is logged, and where.

- reporter: metrics.jsonl and the log lines.
- progress: progress.json.
"""
