"""Finds files that a scratch purge deleted from a run directory, and recreates its directories.

Standard library only.
"""

from __future__ import annotations

import re
from pathlib import Path

from .. import installation, shared_files
from ..errors import UserError
from ..records.training import read_events
from ..rundir import RunDir, folder_of
from ..spec import Spec
from . import code_snapshot

RESUME = f"{installation.command('resume')} continues"
HINT = f"restore it, then {RESUME}; or submit a new run with train.init_from"


def check(run_dir: RunDir) -> None:
    """Raises UserError for a missing or changed file that only the user can restore."""
    _, error = read_spec(run_dir)
    if error is not None:
        raise error
    check_code(run_dir)


def read_spec(run_dir: RunDir) -> tuple[Spec, UserError | None]:
    """Return the frozen spec and None; the defaults and the error where it cannot be read."""
    try:
        return Spec.read(run_dir.spec), None
    except UserError as error:
        return Spec(), error
    except FileNotFoundError:
        return Spec(), UserError(f"{run_dir.spec} is gone\n  hint: {HINT}")
    except (ValueError, TypeError, KeyError) as error:
        return Spec(), UserError(f"{run_dir.spec} is damaged: {error}\n  hint: {HINT}")


def check_code(run_dir: RunDir) -> tuple[Path | None, Path | None]:
    """Return the folders of the frozen code, and of the kit.

    Raises: UserError where one of them, or the code of a user's script, is gone or altered.
    """
    for link in (run_dir.code, run_dir.kit):  # a resume on another host may have replaced them
        shared_files.ask_again(link)
    code, kit = folder_of(run_dir.code), folder_of(run_dir.kit)
    for folder in dict.fromkeys([code, kit, folder_of(run_dir.script_code)]):
        if folder is not None:
            _check_copy(folder, run_dir)
    if kit is not None and not installation.is_in(kit):
        new = installation.command("resume", run_dir.run_id, "", "code")
        raise UserError(f"{run_dir.kit} has no kit\n  hint: {new} freezes it again")
    return code, kit


def _check_copy(folder: Path, run_dir: RunDir) -> None:
    if not shared_files.is_dir(folder):
        raise UserError(f"{folder.resolve()}, the frozen code, is gone\n  hint: {HINT}")
    is_copy = re.fullmatch("[0-9a-f]{64}", folder.name)
    if is_copy and (what := code_snapshot.damage(folder)) is not None:
        new = installation.command("resume", run_dir.run_id, "", "code")
        raise UserError(
            f"{folder.resolve()}, the frozen code, has lost or changed files: {what}\n"
            f"  hint: a script saves in its working directory or KIT_CHECKPOINT_DIR; a submit from "
            f"the checkout that it is a copy of restores it, then {RESUME}; or {new} takes "
            "the code as it is now"
        )


def recreate_missing_dirs(run_dir: RunDir) -> list[str]:
    """Recreate missing directories; return one message for each, and for a lost attempts.jsonl."""
    messages = []
    folders = (run_dir.checkpoints, run_dir.timeline("").parent, run_dir.rank_log(0).parent)
    present = shared_files.listdir(run_dir.path)
    for folder in folders:
        if folder.name not in present:
            folder.mkdir()
            messages.append(f"{folder} was missing and is recreated, empty")
    if run_dir.attempts.name in present:
        return messages
    events = read_events(run_dir.timeline("attempt"))
    if any(event.event == "close" for event in events):
        messages.append(f"{run_dir.attempts} is missing: the budgets do not count earlier attempts")
    return messages
