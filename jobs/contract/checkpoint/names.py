"""The names in the folder of checkpoints, their order, and the pointers `latest` and `best`."""

import contextlib
import re
from pathlib import Path

from ...base import files
from ...base.errors import UserError

TEMPORARY_PREFIX = ".tmp-"  # of a file or directory that is not whole; removed at the next start
QUARANTINE_PREFIX = "quarantined-"
ASIDE_PREFIX = "aside-"  # of a checkpoint that a user left behind to continue from an older one
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
    """Return the names of the committed checkpoints in a folder, newest first; none without it.

    Raises: OSError.
    """
    names = files.names_in(checkpoints)
    steps = {name: step for name in names if (step := checkpoint_step(name)) is not None}
    return sorted(steps, key=steps.__getitem__, reverse=True)


def is_newer(checkpoint: str | None, other: str | None) -> bool:
    """Return whether `checkpoint` is newer than `other`; None is older than any."""
    if checkpoint is None or other is None:
        return checkpoint is not None
    return (checkpoint_step(checkpoint) or 0) > (checkpoint_step(other) or 0)


def free_name(checkpoint: Path, prefix: str) -> Path:
    """Return a path for a checkpoint that is renamed: `prefix` before its name, perhaps a number.

    Raises: OSError.
    """
    free = checkpoint.with_name(f"{prefix}{checkpoint.name}")
    number = 1
    while files.exists(free):
        number += 1
        free = checkpoint.with_name(f"{prefix}{checkpoint.name}.{number}")
    return free


def read_pointer(checkpoints: Path, pointer: str) -> str | None:
    """Return the name in the file `latest` or `best`; None without a file.

    Raises: RecordError, OSError.
    """
    text = files.text_of(checkpoints / pointer)
    return None if text is None else text.strip()


def write_pointer(checkpoints: Path, pointer: str, name: str) -> None:
    """Write a checkpoint's name to the file `latest` or `best`. Raises: OSError.

    Without fsync: after a power failure the file may be old or empty, and no decision depends on it
    alone.
    """
    with files.replacing(checkpoints / pointer) as temporary:
        temporary.write_text(f"{name}\n", encoding="utf-8")


def name_of_step(checkpoints: Path, step: int | None) -> str | None:
    """Return the name of the checkpoint of a step; None where there is none."""
    name = None if step is None else checkpoint_name(step)
    return name if name and files.is_dir(checkpoints / name) else None


def point_at_best(checkpoints: Path, step: int | None) -> None:
    """Write the name of a step's checkpoint to the file `best`, if it exists. Raises: OSError."""
    if (name := name_of_step(checkpoints, step)) is not None:
        write_pointer(checkpoints, BEST, name)


def find_checkpoint(checkpoints: Path, text: str) -> str:
    """Return the name of the checkpoint `latest`, `best`, `step-00000012`, `step-12` or `12`.

    checkpoints: the folder in a run directory. Raises: UserError if it has no such checkpoint.
    """
    names = checkpoint_names(checkpoints)
    number = text.removeprefix("step-")
    name = checkpoint_name(int(number)) if number.isdecimal() else text
    if text == LATEST and names:
        name = names[0]
    if text == BEST:
        with contextlib.suppress(OSError, UserError):
            name = read_pointer(checkpoints, BEST) or text
    # By its name: the listing may be old.
    if checkpoint_step(name) is None or not files.is_dir(checkpoints / name):
        has = ", ".join(names) or "none"
        raise UserError(f"{checkpoints.parent.name} has no checkpoint {text}", f"it has {has}")
    return name
