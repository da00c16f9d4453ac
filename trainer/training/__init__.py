"""A training of a rank, from its start to its end.

- evaluation: the evaluations of an attempt: when one is due, its result, and the best one so far.
- loop: the training loop: evaluate, save, stop, do the steps until anything is due again.
- reporter: rank 0's log lines, metrics.jsonl and progress.json.
- run: one rank from its start to its exit: rendezvous, build, restore, train, report, exit.
- saves: the save policy: which steps are saved, which saves wait for the disk, and what they took.
"""
