"""Options of sbatch and srun, and variables, that the kit sets and a spec therefore may not set.

An abbreviation of such an option is found, too, because sbatch and srun accept every unambiguous
prefix of a long option (getopt_long).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_STATE = "the kit keeps state and logs in the run directory"
_PER_NODE = "one agent runs on each node and starts launch.nproc_per_node ranks there"
_ENV = "environment variables of the ranks go to launch.env, shell lines to setup"
EXPEDITE = "expedite"
_REQUEUE = "the kit requeues the job until the training is complete"
_NO_JOB = "sbatch would not submit the job"
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
    "output": f"{_STATE}; read them with make logs or kit logs",
    "error": f"{_STATE}; read them with make logs or kit logs",
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
    "requeue": f"{_REQUEUE}; the value {EXPEDITE} alone may be given (Slurm 25.11)",
    "no-requeue": _REQUEUE,
    "array": "give slurm/ddp.sbatch a sweep directory: sbatch --array",
    "wrap": "write launch.module or launch.script",
    "export-file": _ENV,
    "get-user-env": _ENV,
    "parsable": "a script can use the option --json of submit",
    "quiet": "the kit reads the job id that sbatch prints",
    "test-only": "make dry-run or kit submit --dry-run shows the submission",
    "wait": "the option -f of logs follows a job",
    "clusters": "submit where that cluster's Slurm is loaded",
    "cluster": "submit where that cluster's Slurm is loaded",
}
SRUN: Mapping[str, str] = {
    **_LAYOUT,
    "kill-on-bad-exit": "the kit ends srun after a rank has failed",
    "wait": "the kit ends srun after a rank has failed",
    "multi-prog": "every node runs the same agent",
    "pty": "the agents have no terminal",
    "jobid": "srun runs in its own job",
    "relative": _PER_NODE,
    "nodelist": _PER_NODE,
    "exclude": "write slurm.exclude",
    "het-group": "write slurm.nodes; all nodes of a run have the same resources",
}
_TORCHRUN = "torchrun sets it for each rank"
_VARIABLES: Mapping[str, str] = {
    "OMP_NUM_THREADS": "write launch.threads_per_rank",
    "PYTHONPATH": "the kit adds your repository or script folder; export other paths in setup",
    "RANK": _TORCHRUN,
    "LOCAL_RANK": _TORCHRUN,
    "GROUP_RANK": _TORCHRUN,
    "ROLE_RANK": _TORCHRUN,
    "ROLE_NAME": _TORCHRUN,
    "WORLD_SIZE": _TORCHRUN,
    "LOCAL_WORLD_SIZE": _TORCHRUN,
    "GROUP_WORLD_SIZE": _TORCHRUN,
    "ROLE_WORLD_SIZE": _TORCHRUN,
    "MASTER_ADDR": "the kit sets it to the first node of each attempt",
    "MASTER_PORT": "the kit chooses it for each attempt",
}
_PREFIXES: Mapping[str, str] = {
    "KIT_": "the kit sets these",
    "TORCHELASTIC_": _TORCHRUN,
    "SLURM_": "Slurm sets these; write the keys below slurm",
}
OPTION = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def reserved_option(name: str, reserved: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the reserved option that Slurm would read `name` as, and the hint for it."""
    if name in reserved:
        return name, reserved[name]
    full = next((option for option in reserved if option.startswith(name)), None)
    return (full, reserved[full]) if full else None


def reserved_variable(name: str) -> str | None:
    """Return what to do instead of setting this environment variable; None if it is free."""
    if name in _VARIABLES:
        return _VARIABLES[name]
    return next((hint for start, hint in _PREFIXES.items() if name.startswith(start)), None)
