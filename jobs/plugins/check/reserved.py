"""Options of sbatch, and of sbatch and srun, that the kit sets, each with what to write instead."""

from collections.abc import Mapping

_STATE = "the kit keeps state and logs in the run directory; make logs or kit logs shows them"
PER_NODE = "one agent runs on each node and starts launch.nproc_per_node ranks there"
_ENV = "environment variables of the ranks go to launch.env, shell lines to setup"
EXPEDITE = "expedite"
_REQUEUE = "the kit requeues the job until the training is complete"
_NO_JOB = "sbatch would not submit the job"
GPUS = "write slurm.gpus_per_node: 2 or a100:2, the GPUs of each node"
_ALL_GPUS = "leave it out: the agent of a node needs all its GPUs, and gives each rank its own"
BOTH: Mapping[str, str] = {
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"), GPUS),
    **dict.fromkeys(("gpu-bind", "tres-bind"), _ALL_GPUS),
    **dict.fromkeys(("ntasks-per-gpu", "ntasks", "ntasks-per-node", "ntasks-per-core"), PER_NODE),
    **dict.fromkeys(("ntasks-per-socket", "tasks-per-node"), PER_NODE),
    **dict.fromkeys(("output", "error", "open-mode"), _STATE),
    **dict.fromkeys(("help", "usage", "version"), _NO_JOB),
    **dict.fromkeys(("chdir", "workdir"), "ranks run in the frozen copy of your code"),
    "cpus-per-gpu": "write slurm.cpus_per_task, the cores of each node",
    "mem-per-gpu": "write slurm.mem, the memory of each node",
    "nodes": "write slurm.nodes",
    "cpus-per-task": "write slurm.cpus_per_task",
    "exclude": "write slurm.exclude",
    "input": "a job has no standard input",
    "export": _ENV,
    "job-name": "write name",
    "time": "write slurm.time",
}
SBATCH: Mapping[str, str] = {
    **BOTH,
    **{key: f"write slurm.{key}" for key in ("partition", "account", "qos", "mem", "constraint")},
    **dict.fromkeys(("export-file", "get-user-env"), _ENV),
    **dict.fromkeys(("clusters", "cluster"), "submit where that cluster's Slurm is loaded"),
    "signal": "write slurm.signal_lead_s",
    "requeue": f"{_REQUEUE}; the value {EXPEDITE} alone may be given (Slurm 25.11)",
    "no-requeue": _REQUEUE,
    "array": "give slurm/ddp.sbatch a sweep directory: sbatch --array",
    "wrap": "write launch.module or launch.script",
    "parsable": "a script can use the option --json of submit",
    "quiet": "the kit reads the job id that sbatch prints",
    "test-only": "make dry-run or kit submit --dry-run shows the submission",
    "wait": "the option -f of logs follows a job",
}
