"""Finds the newest undamaged checkpoint of a run; quarantines damaged ones. Imports no torch.

A checkpoint that is damaged, also after this host's caches were dropped, is damaged for good: it is
renamed and the next older one is used. If the file server is broken instead, the rename fails as
well, and no checkpoint is renamed.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from ..contract import (
    ASIDE_PREFIX,
    LATEST,
    QUARANTINE_PREFIX,
    Contents,
    DamageError,
    NewestCheckpoint,
    RunDir,
    checkpoint_names,
    checkpoint_step,
    files,
    free_name,
    read_pointer,
    reader,
    records,
    with_retries,
)
from ..errors import NoCheckpointLeft

REASON = "REASON"

Value = TypeVar("Value")


class KnownCheckpoints(NamedTuple):
    """The checkpoints of a run."""

    present: list[str]  # their names in the folder, newest first
    newest: str | None  # that the run is known to have had; None before its first


def read_newest(
    root: Path, names: list[str], parse: Callable[[Contents], Value], report: Callable[[str], None]
) -> Value | None:
    """Return what `parse` returns for the first undamaged one of `names`, or None.

    Damaged ones are reported and quarantined; `parse` may raise DamageError, too.
    """
    for name in names:
        try:
            return reader.twice(root / name, lambda directory: parse(Contents.open(directory)))
        except DamageError as error:
            quarantine_and_report(root / name, str(error), report)
    return None


def read_newest_of_run(
    run_dir: RunDir,
    known: KnownCheckpoints,
    parse: Callable[[Contents], Value],
    report: Callable[[str], None],
) -> Value:
    """Return what `read_newest` reads of a run that had a checkpoint.

    Raises: NoCheckpointLeft if it has no undamaged one now: it must not start again at step 0
    unless the user asks for that.
    """
    root, names = run_dir.checkpoints, known.present
    if known.newest is not None and known.newest not in names:
        if files.is_dir(root / known.newest):  # by its name: the listing may be old
            names = [known.newest, *names]
        elif names and not files.exists(root / f"{QUARANTINE_PREFIX}{known.newest}"):
            what = f"checkpoint {known.newest} is missing from {root}"
            report(f"{what}: continuing from an older one")
    newest = read_newest(root, names, parse, report)
    if newest is None:
        what = f"the run had checkpoint {known.newest}, but {root} has no undamaged one"
        hint = "bring its files back and resume, or begin a new run; nothing was overwritten"
        raise NoCheckpointLeft(what, hint)
    return newest


def known_of_run(run_dir: RunDir) -> KnownCheckpoints:
    """Return the checkpoints of a run; none before the folder is there. Raises: OSError.

    The file `latest` and the newest record of an attempt with a checkpoint may name newer ones than
    the folder has, which existed. Those that a user put aside, to continue from an older one, do
    not count.
    """
    root = run_dir.checkpoints
    present = with_retries(checkpoint_names, root)
    names = present[:1]
    with contextlib.suppress(OSError, records.RecordError):  # the file may be missing or damaged
        names.append(read_pointer(root, LATEST) or "")
    attempts = with_retries(records.read_lines, NewestCheckpoint, run_dir.attempts)
    names += [attempt.checkpoint for attempt in attempts if attempt.checkpoint is not None][-1:]
    asides = {name: root / f"{ASIDE_PREFIX}{name}" for name in names}
    left = [name for name in names if name in present or not files.exists(asides[name])]
    steps = {name: step for name in left if (step := checkpoint_step(name)) is not None}
    return KnownCheckpoints(present, max(steps, key=lambda name: steps[name], default=None))


def quarantine_and_report(directory: Path, reason: str, report: Callable[[str], None]) -> None:
    aside = quarantine(directory, reason)
    report(f"checkpoint {directory} is damaged and now {aside.name}: {reason}")


def quarantine(directory: Path, reason: str) -> Path:
    """Rename a damaged checkpoint and write the reason into it; return its new path."""
    aside = free_name(directory, QUARANTINE_PREFIX)
    os.rename(directory, aside)
    files.fsync_directory(directory.parent)
    # It may be a file instead of a directory, or the disk may be full: the log has the reason, too.
    with contextlib.suppress(OSError), files.replacing(aside / REASON) as temporary:
        temporary.write_text(reason + "\n", encoding="utf-8", errors="backslashreplace")
    return aside
