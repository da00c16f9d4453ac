"""The names of checkpoints and their order, for jobs and trainer. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from slurm_job_kit.jobs import shared_files

QUARANTINE_PREFIX = "quarantined-"
ASIDE_PREFIX = "aside-"  # of a checkpoint that a user left behind by going on from an older one
MANIFEST = "manifest.json"  # in each checkpoint
LATEST = "latest"  # beside the checkpoints; these two name one each
BEST = "best"
_CHECKPOINT = re.compile(r"step-(\d{8,})")


def checkpoint_name(step: int) -> str:
    """Return the name of the checkpoint of a step; only committed checkpoints have such a name."""
    return f"step-{step:08d}"


def checkpoint_step(name: str) -> int | None:
    """Return the step in the name of a committed checkpoint; None for any other name.

    Checkpoints are ordered by this number: from step 100,000,000 on the names have nine digits,
    and their order as strings is another one.
    """
    match = _CHECKPOINT.fullmatch(name)
    return int(match[1]) if match else None


def checkpoint_names(checkpoints: Path) -> list[str]:
    """Return the names of the committed checkpoints in a folder, newest first. Raises: OSError."""
    return newest_first(shared_files.listdir(checkpoints))


def newest_first(names: Iterable[str]) -> list[str]:
    """Return those of the names that are committed checkpoints, newest first."""
    steps = {name: step for name in names if (step := checkpoint_step(name)) is not None}
    return sorted(steps, key=steps.__getitem__, reverse=True)


def is_newer(checkpoint: str | None, other: str | None) -> bool:
    """Return whether `checkpoint` is newer than `other`; None is older than any.

    Both may instead name the newest file of a user's script: its time, of fixed width, and path.
    """
    if checkpoint is None or other is None:
        return checkpoint is not None
    steps = checkpoint_step(checkpoint), checkpoint_step(other)
    if steps[0] is None or steps[1] is None:
        return checkpoint > other
    return steps[0] > steps[1]
