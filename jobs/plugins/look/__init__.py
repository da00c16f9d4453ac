"""The plugin look: the commands that show what runs do, and why they ended; they change no file.

- status: the command; lists the runs and their states, or one run in detail.
- why: the command; prints why a run waits, ended or is held, and what to do.
- logs: the command; shows or follows the logs of one rank over all attempts, or the first error.
- words: states, causes, nodes, times and progress in plain words.
- pending: explains why a job waits, for twenty reasons of squeue.
"""
