"""The points of a sweep: drawn, checked, run.

- runner: runs points of a sweep, as a job array or here.
- specs: makes a checked spec of each point.
- section: reads the section `sweep` of a file, and lists of values on the command line.
- draws: draws values at random, the same ones for the same seed.
"""
