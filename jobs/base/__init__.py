"""What each process of the kit uses; it imports only the list of plugins. Standard library only.

- console: writes what the kit prints. Characters that could control a terminal are shown escaped.
- environment: the environment variables that no program started by the kit may inherit. Standard
  library only.
- errors: the errors that end a command without a traceback, and how an error is written out.
- files: reads and writes files, also those of another host on a shared file system.
- gpus: the number of GPUs: in a spec, in Slurm's variables, in CUDA's, and as device files.
- installation: where the kit's own files are: in a clone of its repository, or where pip has
  installed them.
- log_text: what a screen shows of a log of any shape, read from its end in bounded time and memory.
- packages: names Python packages that are missing, and the extra of the kit that has them.
- prctl: settings of a process that only prctl(2) has. Standard library only.
- procfs: reads from /proc who started a process, when, and which processes it started.
- stop_signals: the signals that ask a job to stop; blocks them until a process has handlers for
  them.
"""
