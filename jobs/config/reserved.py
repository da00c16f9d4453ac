"""What the kit sets itself and a spec may therefore not: options of sbatch and srun, variables.

An option is looked up with its abbreviations, because sbatch and srun take every unambiguous
prefix of a long option (getopt_long).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_STATE = "the kit keeps state and logs in the run directory"
_PER_NODE = "one agent runs on each node and starts launch.nproc_per_node ranks there"
_ENV = "environment variables of the ranks go to launch.env, shell lines to setup"
_REQUEUE = "the kit requeues by itself whenever the work is not complete"
_NO_JOB = "it would not submit the job"
_LAYOUT: Mapping[str, str] = {
    "nodes": "write slurm.nodes",
    "ntasks": _PER_NODE,
    "ntasks-per-node": _PER_NODE,
    "ntasks-per-core": _PER_NODE,
    "ntasks-per-socket": _PER_NODE,
    "ntasks-per-gpu": _PER_NODE,
    "tasks-per-node": _PER_NODE,
    "cpus-per-task": "write slurm.cpus_per_task",
    "chdir": "ranks run in the frozen copy of your code",
    "output": f"{_STATE}; read them with python -m jobs logs",
    "error": f"{_STATE}; read them with python -m jobs logs",
    "open-mode": f"{_STATE}, which a requeue appends to",
    "input": "a job has no standard input",
    "export": _ENV,
    "help": _NO_JOB,
    "usage": _NO_JOB,
    "version": _NO_JOB,
    "job-name": "write name",
    "time": "write slurm.time",
}
SBATCH: Mapping[str, str] = {
    **_LAYOUT,
    "workdir": _LAYOUT["chdir"],
    "gpus": "write slurm.gpus_per_node",
    "gpus-per-node": "write slurm.gpus_per_node",
    "gpus-per-task": "write slurm.gpus_per_node",
    "partition": "write slurm.partition",
    "account": "write slurm.account",
    "qos": "write slurm.qos",
    "mem": "write slurm.mem",
    "constraint": "write slurm.constraint",
    "exclude": "write slurm.exclude",
    "signal": "write slurm.signal_lead_s",
    "requeue": _REQUEUE,
    "no-requeue": _REQUEUE,
    "array": "give slurm/ddp.sbatch a sweep directory: sbatch --array",
    "wrap": "write launch.module or launch.script",
    "export-file": _ENV,
    "get-user-env": _ENV,
    "parsable": "python -m jobs submit --json is there for scripts",
    "quiet": "the kit reads the job id that sbatch prints",
    "test-only": "python -m jobs submit --dry-run shows the submission",
    "wait": "python -m jobs logs -f follows a job",
    "clusters": "submit where that cluster's Slurm is loaded",
    "cluster": "submit where that cluster's Slurm is loaded",
}
SRUN: Mapping[str, str] = {
    **_LAYOUT,
    "kill-on-bad-exit": "the kit ends a step whose ranks have failed",
    "wait": "the kit ends a step whose ranks have failed",
    "multi-prog": "every node runs the same agent",
    "pty": "the agents have no terminal",
    "jobid": "the step runs in its own job",
    "relative": _PER_NODE,
    "nodelist": _PER_NODE,
    "exclude": "write slurm.exclude",
    "het-group": "write slurm.nodes; the nodes of a run are alike",
}
_TORCHRUN = "torchrun sets it for each rank"
_VARIABLES: Mapping[str, str] = {
    "OMP_NUM_THREADS": "write launch.threads_per_rank",
    "PYTHONPATH": "your repository (launch.script: its own folder) is found; export more in setup",
    "RANK": _TORCHRUN,
    "LOCAL_RANK": _TORCHRUN,
    "GROUP_RANK": _TORCHRUN,
    "ROLE_RANK": _TORCHRUN,
    "ROLE_NAME": _TORCHRUN,
    "WORLD_SIZE": _TORCHRUN,
    "LOCAL_WORLD_SIZE": _TORCHRUN,
    "GROUP_WORLD_SIZE": _TORCHRUN,
    "ROLE_WORLD_SIZE": _TORCHRUN,
    "MASTER_ADDR": "the kit chooses it from the nodes of each attempt",
    "MASTER_PORT": "the kit chooses it for each attempt",
}
_PREFIXES: Mapping[str, str] = {
    "KIT_": "these are the kit's own",
    "TORCHELASTIC_": _TORCHRUN,
    "SLURM_": "Slurm sets these; write the keys below slurm",
}
OPTION = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def owned_option(name: str, owned: Mapping[str, str]) -> tuple[str, str] | None:
    """The owned option that Slurm would read `name` as, and what to write instead of it."""
    if name in owned:
        return name, owned[name]
    full = next((option for option in owned if option.startswith(name)), None)
    return (full, owned[full]) if full else None


def owned_variable(name: str) -> str | None:
    """What to do instead of setting an environment variable that the kit sets."""
    if name in _VARIABLES:
        return _VARIABLES[name]
    return next((hint for start, hint in _PREFIXES.items() if name.startswith(start)), None)
