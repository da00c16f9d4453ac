"""What passes between processes: spec, files of a run, records, checkpoints, kinds of an end.

The trainer and the plugins import of jobs/ this folder and base. Standard library only.

- batch_sizes: the samples of an optimizer step, and how the ranks share them.
- checkpoint/: the files of a checkpoint, and what reads and checks them.
- kinds: what ends or delays a run: the names, and one table with what each means and what to do.
- known_causes: the known causes behind errors of any program, and how to know each.
- problems: one mistake of a user: which key, what is wrong, how to fix it; and all of them in one
  exception.
- rank_start: the start of each rank: it dies with torchrun, and opens its own log.
- records/: the content of the JSON files of a run.
- rundir: the run directory: the path of each file in it.
- spec: the experiment spec: typed, frozen, standard library only.
"""
