"""Checks of name, slurm and launch that types cannot express."""

import os
import re
import shlex
from collections.abc import Iterator, Mapping

from ...contract.problems import KeyPath, Problem, format_value
from ...contract.spec import Launch, Slurm, Spec
from ...slurm import duration

MAX_NAME_BYTES = 100
MAX_HANG_S = 540  # torch ends a rank that waits for a collective after 600 s
_STATE = "the kit keeps state and logs in the run directory; make logs or kit logs shows them"
_PER_NODE = "one agent runs on each node and starts launch.nproc_per_node ranks there"
_ENV = "environment variables of the ranks go to launch.env, shell lines to setup"
_REQUEUE = "the kit requeues the job until the training is complete"
_GPUS = "write slurm.gpus_per_node: 2 or a100:2, the GPUs of each node"
# Options that the kit sets for sbatch and srun, each with what to write instead.
_BOTH: Mapping[str, str] = {
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"), _GPUS),
    **dict.fromkeys(("ntasks-per-gpu", "ntasks", "ntasks-per-node", "ntasks-per-core"), _PER_NODE),
    **dict.fromkeys(("ntasks-per-socket", "tasks-per-node", "gpu-bind", "tres-bind"), _PER_NODE),
    **dict.fromkeys(("output", "error", "open-mode"), _STATE),
    **dict.fromkeys(("chdir", "workdir"), "ranks run in the frozen copy of your code"),
    **{key: f"write slurm.{key}" for key in ("nodes", "exclude", "time")},
    **dict.fromkeys(("cpus-per-gpu", "cpus-per-task"), "write slurm.cpus_per_task, of each node"),
    "mem-per-gpu": "write slurm.mem, the memory of each node",
    **dict.fromkeys(("export", "export-file", "get-user-env"), _ENV),
    "job-name": "write name",
}
SBATCH: Mapping[str, str] = {
    **_BOTH,
    **{key: f"write slurm.{key}" for key in ("partition", "account", "qos", "mem", "constraint")},
    **dict.fromkeys(("clusters", "cluster"), "submit where that cluster's Slurm is loaded"),
    "signal": "write slurm.signal_lead_s",
    "requeue": f"{_REQUEUE}; the value expedite alone may be given (Slurm 25.11)",
    "no-requeue": _REQUEUE,
    "array": "give slurm/ddp.sbatch a sweep directory: sbatch --array",
    "wrap": "write launch.module or launch.script",
    "quiet": "the kit reads the job id that sbatch prints",
    "wait": "the option -f of logs follows a job",
}
_SRUN: Mapping[str, str] = {
    **_BOTH,
    **dict.fromkeys(("gres", "tres-per-task"), _GPUS),
    **dict.fromkeys(("kill-on-bad-exit", "wait"), "the kit ends srun after a rank has failed"),
    **dict.fromkeys(("relative", "nodelist"), _PER_NODE),
}


def problems(spec: Spec) -> Iterator[Problem]:
    yield from _name(spec.name)
    yield from _slurm(spec.slurm)
    yield from _srun(spec.slurm.srun_args)
    yield from _launch(spec.launch)


def _name(name: str) -> Iterator[Problem]:
    """Allow spaces, quotes, `$()` and umlauts: a name is one argument and the name of a folder,
    and no shell sees it. Refuse %: Slurm and submitit replace %j in every path.
    """
    is_short = len(name.encode()) <= MAX_NAME_BYTES
    if not (is_short and re.fullmatch(r"(?![ .-])[^/:%]+(?<! )", name) and name.isprintable()):
        what = f"{format_value(name)} cannot be the name of a folder and of a job"
        hint = f"write 1 to {MAX_NAME_BYTES} bytes without / : % and control characters, which"
        yield Problem(("name",), what, f"{hint} begin and end with a letter")


def _slurm(slurm: Slurm) -> Iterator[Problem]:
    limit_s = duration.parse_or_zero(slurm.time)
    if slurm.signal_lead_s >= limit_s:
        what = f"{slurm.signal_lead_s} s is not shorter than the time limit, {slurm.time}"
        also = (("slurm", "time"),)
        hint = "the ranks would stop before their first step: raise slurm.time, or lower this key"
        yield Problem(("slurm", "signal_lead_s"), what, hint, also)
    for name, value in slurm.sbatch_args.items():
        if (name, value) != ("requeue", "expedite"):
            yield from _reserved(("slurm", "sbatch_args", name), name.replace("_", "-"), SBATCH)


def _reserved(path: KeyPath, name: str, options: Mapping[str, str]) -> Iterator[Problem]:
    if name in options:
        yield Problem(path, f"--{name} belongs to the kit", options[name])


def _srun(options: list[str]) -> Iterator[Problem]:
    """Yield wrong options: srun runs the first argument without -- as its command."""
    for index, option in enumerate(options):
        path = ("slurm", "srun_args", index)
        if re.match("--[a-z]", option):
            yield from _reserved(path, option[2:].partition("=")[0], _SRUN)
        else:
            hint = "write each as one long option, such as --mpi=none"
            yield Problem(path, f"{format_value(option)} is not an srun option", hint)


def _launch(launch: Launch) -> Iterator[Problem]:
    limit_s = launch.hang_timeout_s
    if launch.is_trainer and limit_s != "auto" and limit_s > MAX_HANG_S:
        what = f"must be at most {MAX_HANG_S}, or auto, not {limit_s}"
        yield Problem(("launch", "hang_timeout_s"), what, "torch ends a collective after 600 s")
    if launch.is_trainer and launch.args:
        what = "is for your own script or module, not for the trainer"
        yield Problem(("launch", "args"), what, "write the trainer's settings below train")
    if launch.script and launch.script.endswith(".ipynb"):
        what = f"{format_value(launch.script)} is a notebook, which Python does not run"
        hint = f"jupyter nbconvert --to script {shlex.quote(launch.script)} writes a .py file of it"
        yield Problem(("launch", "script"), what, hint)
    python = launch.python  # a relative path would begin in the frozen code
    if python and (python.startswith("-") or ("/" in python and not python.startswith("/"))):
        what = f"{format_value(python)} is neither an absolute path nor the name of a command"
        hint = f"write {os.path.abspath(python)}, or a name such as python3"
        yield Problem(("launch", "python"), what, hint)
