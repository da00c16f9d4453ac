"""Checks of name, slurm and launch that types cannot express."""

import math
import os
import re
from collections.abc import Iterator, Mapping

from ...contract.problems import KeyPath, Problem, format_value
from ...contract.spec import Launch, Slurm, Spec
from ...slurm import duration
from .reserved import BOTH, EXPEDITE, GPUS, PER_NODE, SBATCH

MAX_NAME_BYTES = 100
_SRUN: Mapping[str, str] = {
    **BOTH,
    **dict.fromkeys(("gres", "tres-per-task"), GPUS),
    **dict.fromkeys(("kill-on-bad-exit", "wait"), "the kit ends srun after a rank has failed"),
    **dict.fromkeys(("relative", "nodelist"), PER_NODE),
}
# Keys of launch that hold a number or auto: lower bound, upper bound, hint.
_OR_AUTO: dict[str, tuple[int, float, str]] = {
    "nproc_per_node": (1, math.inf, "auto is one rank per GPU, or one"),
    "stop_check_steps": (1, math.inf, "auto is about every 50 ms"),
    # Above 540 s torch's limit of 600 s for a collective would end a hung rank first.
    "hang_timeout_s": (1, 540, "torch ends a collective after 600 s; auto is 540"),
}


def problems(spec: Spec) -> Iterator[Problem]:
    """Yield what is wrong with the top level, slurm and launch."""
    yield from _name(spec.name)
    yield from _slurm(spec.slurm)
    yield from _srun(spec.slurm.srun_args, spec.launch.command_prefix)
    yield from _launch(spec.launch)


def _name(name: str) -> Iterator[Problem]:
    """Allow spaces, quotes, `$()` and umlauts: a name is one argument and the name of a folder,
    and no shell sees it. Refuse %: Slurm and submitit replace %j in every path.
    """
    path = ("name",)
    if not 1 <= len(name.encode()) <= MAX_NAME_BYTES:
        what = f"has {len(name.encode())} bytes"
        yield Problem(path, what, f"write 1 to {MAX_NAME_BYTES} bytes")
    elif not re.fullmatch(r"(?![ .-])[^/:%]*(?<! )", name) or not name.isprintable():
        what = f"{format_value(name)} cannot be the name of a folder and of a job"
        hint = "leave out / : % and control characters, and begin and end it with a letter"
        yield Problem(path, what, hint)


def _slurm(slurm: Slurm) -> Iterator[Problem]:
    limit_s = duration.parse_or_zero(slurm.time)
    if slurm.signal_lead_s >= limit_s:
        what = f"{slurm.signal_lead_s} s is not shorter than the time limit, {slurm.time}"
        also = (("slurm", "time"),)
        hint = "the ranks would stop before their first step: raise slurm.time, or lower this key"
        yield Problem(("slurm", "signal_lead_s"), what, hint, also)
    for name, value in slurm.sbatch_args.items():
        if (name, value) != ("requeue", EXPEDITE):
            path = ("slurm", "sbatch_args", name)
            yield from _reserved(path, name.replace("_", "-").partition("=")[0], SBATCH)


def _reserved(path: KeyPath, name: str, options: Mapping[str, str]) -> Iterator[Problem]:
    """Refuse an option that the kit sets, and each beginning of one: getopt_long completes it."""
    full = name if name in options else next((x for x in options if x.startswith(name)), None)
    if full is not None:
        option = f"--{name}" if name == full else f"--{name} could mean --{full}, which"
        yield Problem(path, f"{option} belongs to the kit", options[full])


def _srun(options: list[str], prefix: list[str]) -> Iterator[Problem]:
    """Yield wrong srun options and command prefixes.

    srun runs the first argument without -- as its command, and starts a second command after ":".
    """
    for index, option in enumerate(options):
        path = ("slurm", "srun_args", index)
        if re.match("--[a-z]", option):
            yield from _reserved(path, option[2:].partition("=")[0], _SRUN)
        else:
            hint = "write each as one long option, such as --mpi=none"
            yield Problem(path, f"{format_value(option)} is not an srun option", hint)
    for index, argument in enumerate(prefix):
        if argument == ":" or (index == 0 and (not argument or argument.startswith("-"))):
            path = ("launch", "command_prefix", index)
            hint = "begin with a command; after a lone : srun would start a second command"
            yield Problem(path, f"{format_value(argument)} is not allowed here", hint)


def _launch(launch: Launch) -> Iterator[Problem]:
    for name, (least, most, hint) in _OR_AUTO.items():
        number = getattr(launch, name)
        most = most if launch.is_trainer else math.inf  # a script may be silent for long
        if isinstance(number, int) and not least <= number <= most:
            bound = f"at least {least}" if number < least else f"at most {most}"
            yield Problem(("launch", name), f"must be {bound}, or auto, not {number}", hint)
    yield from _python(launch.python)


def _python(python: str | None) -> Iterator[Problem]:
    """Refuse a relative path: it would begin in the frozen code, where no environment is."""
    if python and (python.startswith("-") or ("/" in python and not python.startswith("/"))):
        what = f"{format_value(python)} is neither an absolute path nor the name of a command"
        hint = f"write {os.path.abspath(python)}, or a name such as python3"
        yield Problem(("launch", "python"), what, hint)
