"""The user's own torchrun script or module in place of the trainer: launch.script, launch.module.

- check: what is wrong with its keys of the section launch.
- code: which repository and script a run freezes.
- hooks: the hooks of the plugin.
- progress: whether an attempt saved something new.
- meeting: torchrun, which notes whether the ranks opened a process group.
- text: what the text of a script shows that may go wrong in a job.
- typed: the command behind `--` of submit and sweep, as the text of a spec.
- command: command and variables of its ranks.
- rank: the wrapper of each rank.
- watch: notices that no rank of it writes any more.
- work: its working directory, a copy of the frozen code for each run.
"""
