"""What a scratch purge took from a run directory: told, and made anew where that is possible.

Standard library only.
"""

from __future__ import annotations

import re

from jobs import records
from jobs.errors import UserError
from jobs.rundir import RunDir
from jobs.runs import code_snapshot
from jobs.spec import Spec

HINT = "bring it back, then make resume goes on; or submit a new run with train.init_from"


def check(run_dir: RunDir) -> None:
    """Raises UserError where a file is gone, or altered, that cannot be recreated."""
    _, error = read_spec(run_dir)
    if error is not None:
        raise error
    check_code(run_dir)


def read_spec(run_dir: RunDir) -> tuple[Spec, UserError | None]:
    """The frozen spec and None; the defaults and the error where it cannot be read."""
    try:
        return Spec.read(run_dir.spec), None
    except UserError as error:
        return Spec(), error
    except FileNotFoundError:
        return Spec(), UserError(f"{run_dir.spec} is gone\n  hint: {HINT}")
    except (ValueError, TypeError, KeyError) as error:
        return Spec(), UserError(f"{run_dir.spec} is damaged: {error}\n  hint: {HINT}")


def check_code(run_dir: RunDir) -> None:
    """Raises UserError where the frozen code is gone or altered."""
    code = run_dir.code.resolve()
    if run_dir.code.is_symlink() and not code.is_dir():
        raise UserError(f"{code}, the frozen code, is gone\n  hint: {HINT}")
    is_snapshot = re.fullmatch("[0-9a-f]{64}", code.name)
    if is_snapshot and not code_snapshot.is_whole(code):
        raise UserError(
            f"{code}, the frozen code, has lost or changed files\n  hint: a submit from "
            "the checkout that it is a copy of makes it anew, then make resume goes on"
        )


def mend(run_dir: RunDir) -> list[str]:
    """Make the folders anew that are gone; a line to tell for each thing that was."""
    told = []
    folders = (run_dir.checkpoints, run_dir.timeline("").parent, run_dir.rank_log(0).parent)
    for folder in folders:
        if not folder.is_dir():
            folder.mkdir()
            told.append(f"{folder} was gone and is made anew, empty")
    events = records.read_events(run_dir.timeline("attempt"))
    closed = [event for event in events if event.event == "close"]
    if closed and not run_dir.attempts.exists():
        told.append(f"{run_dir.attempts} is gone: what earlier attempts did counts no more")
    return told
