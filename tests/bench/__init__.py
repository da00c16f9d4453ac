"""Measures the costs of the kit and compares it with rivals: `python -m tests.bench`."""
