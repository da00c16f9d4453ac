"""What grows with the number of nodes and ranks.

- ranks: small runs on the real Slurm of tests/slurm: counts and CPU seconds by number of ranks.
- files: how long the kit takes to read the files of an attempt with thousands of ranks.
- __main__: the tables of `make bench-scale`.
"""
