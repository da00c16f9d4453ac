"""Many runs of one spec as one job array: points, submission, ranking.

- submit: the command sweep: makes a sweep, or continues the one with the same points.
- section: reads the section `sweep` of a file, and lists of values on the command line.
- draws: draws values at random, the same ones for the same seed.
- points: makes a checked spec of each point.
"""
