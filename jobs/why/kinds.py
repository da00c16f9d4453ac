"""What a person does about each kind of what ends or delays a run."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from slurm_job_kit.jobs.kinds import Kind
from slurm_job_kit.jobs.known_causes import KNOWN_CAUSES
from slurm_job_kit.jobs.slurm import duration
from slurm_job_kit.jobs.spec import Spec


def _no_change(_: Spec) -> str:
    return ""


@dataclass(frozen=True)
class Remedy:
    """What to do after the end of a run, and the command for it.

    change: the `KEY=VALUE` for a run with this spec; `...` stands for what the user must choose.
    flags: as for `installation.command`.
    """

    text: str
    command: str = "resume"
    change: Callable[[Spec], str] = _no_change
    flags: tuple[str, ...] = ()


def _more_time(spec: Spec) -> str:
    minutes, seconds = divmod(2 * duration.parse_or_zero(spec.slurm.time), 60)
    return (
        f"slurm.time={minutes // 60}:{minutes % 60:02}:{seconds:02}"
        if minutes
        else "slurm.time=..."
    )


def _more_memory(spec: Spec) -> str:
    """Twice as much; the user knows the nodes where the spec requests nothing, or all of a node."""
    parts = re.fullmatch(r"0*([1-9]\d*)([KMGT]?)B?", (spec.slurm.mem or "").upper())
    return f"slurm.mem={2 * int(parts[1])}{parts[2]}" if parts else "slurm.mem=..."


def _smaller_batch(spec: Spec) -> str:
    """Half of the samples at a time, and the same number in a step if it can be divided."""
    size, steps = spec.train.micro_batch_size, spec.train.grad_accum_steps
    if size == 1:
        return "KEY=VALUE"
    return f"train.micro_batch_size={size // 2} train.grad_accum_steps={2 * steps}"


def _lower_rate(spec: Spec) -> str:
    return f"train.lr={spec.train.lr / 10:g}"


def _more_restarts(spec: Spec) -> str:
    return f"slurm.max_restarts={2 * max(100, spec.slurm.max_restarts)}"


CODE = Remedy("correct the code, then resume with it", flags=("code",))
SPEC = Remedy("correct the key that the error names", change=lambda _: "KEY=VALUE", flags=("yes",))
LOOK = Remedy("read the log of the rank", "logs")
REMEDIES: dict[Kind, Remedy] = {
    Kind.CANCELLED: Remedy("nothing is wrong: resume continues from what was saved"),
    Kind.INTERRUPTED: Remedy("nothing is wrong: resume continues from what was saved"),
    Kind.TIME_LIMIT: Remedy("give the job more time", change=_more_time),
    Kind.SHORT_TIME_LIMIT: Remedy("raise slurm.time above the start-up", change=_more_time),
    Kind.NOT_REQUEUED: Remedy(
        "let a successor job wait where Slurm refuses a requeue",
        change=lambda _: "slurm.restart=auto",
    ),
    Kind.HANG: Remedy("look at the place where the named rank is, then resume", "logs"),
    Kind.COLLECTIVE: Remedy("look at the network of the named node, then resume"),
    Kind.OUT_OF_MEMORY: Remedy(
        "give the job more memory, or use a smaller train.micro_batch_size", change=_more_memory
    ),
    Kind.GPU_OUT_OF_MEMORY: Remedy(
        "use a smaller train.micro_batch_size and more train.grad_accum_steps, or another "
        "train.strategy",
        change=_smaller_batch,
        flags=("yes",),
    ),
    Kind.GPU_ERROR: Remedy("report the node to the site if it repeats, then resume"),
    Kind.IMPORT_ERROR: Remedy(
        "install the module for launch.python, or correct the import, then resume", flags=("code",)
    ),
    Kind.USER_CODE: CODE,
    Kind.SYNTAX_ERROR: CODE,
    Kind.USAGE: Remedy("correct launch.args", change=lambda _: "launch.args=[...]", flags=("yes",)),
    Kind.SPEC_MISTAKE: SPEC,
    Kind.NOT_FINITE: Remedy(
        "use a lower train.lr, or train.grad_clip_norm", change=_lower_rate, flags=("yes",)
    ),
    Kind.DISK_FULL: Remedy("free space on that disk, then resume"),
    Kind.QUOTA: Remedy("free space there or ask for more quota, then resume"),
    Kind.READ_ONLY: Remedy("make the directory writable, then resume"),
    Kind.DISK_ERROR: Remedy("ask the site about that file system, then resume"),
    Kind.RUN_DIRECTORY_GONE: Remedy("move the run directory back to its place, then resume"),
    Kind.FILES_MISSING: Remedy("bring the files back, then resume"),
    Kind.MAX_RESTARTS: Remedy("allow more restarts", change=_more_restarts),
    Kind.BAD_NODE: Remedy("report the node to the site, then resume"),
    Kind.NODE_FAILURE: Remedy("report the node to the site if it repeats, then resume"),
    Kind.REFUSED: Remedy("remove what the line names; if no other job runs the run, resume"),
    Kind.UNKNOWN: LOOK,
}
# Of the causes behind errors of other programs: jobs.errors.
for _cause in KNOWN_CAUSES:
    REMEDIES.setdefault(_cause.kind, Remedy(f"{_cause.remedy}, then resume"))
DEFAULT = Remedy("resume continues from what was saved")
