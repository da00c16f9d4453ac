"""What the kit costs and what it beats, measured: `python -m tests.bench`."""
