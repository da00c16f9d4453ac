"""Options of sbatch and srun that the kit sets and a spec therefore may not set.

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
_GPUS = "write slurm.gpus_per_node, the GPUs of each node"
_ALL_GPUS = "leave it out: the agent of a node needs all its GPUs, and gives each rank its own"
_OF_GPUS: Mapping[str, str] = {
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"), _GPUS),
    "cpus-per-gpu": "write slurm.cpus_per_task, the cores of each node",
    "mem-per-gpu": "write slurm.mem, the memory of each node",
    "ntasks-per-gpu": _PER_NODE,
    "gpu-bind": _ALL_GPUS,
    "tres-bind": _ALL_GPUS,
}
_LAYOUT: Mapping[str, str] = {
    **_OF_GPUS,
    "nodes": "write slurm.nodes",
    "ntasks": _PER_NODE,
    "ntasks-per-node": _PER_NODE,
    "ntasks-per-core": _PER_NODE,
    "ntasks-per-socket": _PER_NODE,
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
    "gres": _GPUS,
    "tres-per-task": _GPUS,
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
OPTION = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
# The long options of sbatch that take no part above. Plugins of a site may add others.
# Source: sbatch(1) of Slurm 22.05, 24.11 and 26.05.
_OTHERS = """
    acctg-freq batch bb bbf begin cluster-constraint comment consolidate-segments container
    container-id container-type contiguous core-spec cores-per-socket cpu-freq deadline delay-boot
    dependency distribution exclusive extra extra-node-info gid gpu-freq gres gres-flags hint hold
    ignore-pbs kill-on-invalid-dep licenses mail-type mail-user mcs-label mem-bind mem-per-cpu
    mem-update mincpus network nice no-kill nodefile nodelist oom-kill-step overcommit oversubscribe
    power prefer priority profile propagate reboot reservation resources resv-ports segment
    sockets-per-node spread-job spread-segments stepmgr switches thread-spec threads-per-core
    time-min tmp tres-per-task uid use-min-nodes verbose wait-all-nodes wckey
"""
_SHORT = """
    A=account B=extra-node-info C=constraint D=chdir F=nodefile G=gpus H=hold J=job-name L=licenses
    M=clusters N=nodes O=overcommit Q=quiet S=core-spec V=version W=wait a=array b=begin
    c=cpus-per-task d=dependency e=error h=help i=input k=no-kill m=distribution n=ntasks o=output
    p=partition q=qos s=oversubscribe t=time v=verbose w=nodelist x=exclude
"""
SHORT: Mapping[str, str] = {pair[0]: pair[2:] for pair in _SHORT.split()}


def possible_options(name: str) -> list[str]:
    """Return the long options of sbatch that `name`, in any of the spec's spellings, may stand for.

    One for its full name and for the beginning of one option only; none for an unknown one.
    """
    option = name.replace("_", "-")
    known = (*SBATCH, *_OTHERS.split())
    return (
        [option] if option in known else sorted(each for each in known if each.startswith(option))
    )


def full_name(name: str) -> str:
    """Return an option as sbatch's manual has it: `mail_ty` is mail-type; others with dashes."""
    options = possible_options(name)
    return options[0] if len(options) == 1 else name.replace("_", "-")


def reserved_option(name: str, reserved: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the reserved option that Slurm would read `name` as, and the hint for it."""
    if name in reserved:
        return name, reserved[name]
    full = next((option for option in reserved if option.startswith(name)), None)
    return (full, reserved[full]) if full else None
