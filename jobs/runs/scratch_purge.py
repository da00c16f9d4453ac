"""Finds files that a scratch purge deleted from a run directory, and recreates its directories.

Standard library only.
"""

from __future__ import annotations

import re

from slurm_job_kit.jobs import installation, records
from slurm_job_kit.jobs.errors import UserError
from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.runs import code_snapshot
from slurm_job_kit.jobs.spec import Spec

RESUME = f"{installation.command('resume')} continues"
HINT = f"restore it, then {RESUME}; or submit a new run with train.init_from"


def check(run_dir: RunDir) -> None:
    """Raises UserError for a missing or changed file that only the user can restore."""
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
    """Raises UserError where the frozen code, or that of a user's script, is gone or altered."""
    for link in (run_dir.code, run_dir.kit, run_dir.script_code):
        code = link.resolve()
        if link.is_symlink() and not code.is_dir():
            raise UserError(f"{code}, the frozen code, is gone\n  hint: {HINT}")
        is_snapshot = re.fullmatch("[0-9a-f]{64}", code.name)
        if is_snapshot and not code_snapshot.is_whole(code):
            new = installation.command("resume", run_dir.run_id, "", "code")
            raise UserError(
                f"{code}, the frozen code, has lost or changed files\n  hint: a submit from the "
                f"checkout that it is a copy of restores it, then {RESUME}; or {new} takes the "
                "code as it is now"
            )
    if run_dir.kit.is_symlink() and not installation.is_in(run_dir.kit):
        new = installation.command("resume", run_dir.run_id, "", "code")
        raise UserError(f"{run_dir.kit} has no kit\n  hint: {new} freezes it again")


def recreate_missing_dirs(run_dir: RunDir) -> list[str]:
    """Recreate missing directories; return one message for each, and for a lost attempts.jsonl."""
    messages = []
    folders = (run_dir.checkpoints, run_dir.timeline("").parent, run_dir.rank_log(0).parent)
    for folder in folders:
        if not folder.is_dir():
            folder.mkdir()
            messages.append(f"{folder} was missing and is recreated, empty")
    events = records.read_events(run_dir.timeline("attempt"))
    closed = [event for event in events if event.event == "close"]
    if closed and not run_dir.attempts.exists():
        messages.append(f"{run_dir.attempts} is missing: the budgets do not count earlier attempts")
    return messages
