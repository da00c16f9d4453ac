"""Whether a complete run gets more steps, and what more steps do to the learning rate."""

import json
from pathlib import Path

from ... import records, shared_files
from ...attempt.decision import Decision
from ...attempt.record_writer import corrected_record
from ...errors import HINT, UserError
from ...records.ended import Action
from ...records.frozen import Revision
from ...records.training import Progress, Result
from ...rundir import RunDir
from ...runs import fact_reader, revision
from ...spec import Train

SCHEDULES = {
    "constant": "train.schedule constant: the learning rate stays as it is",
    "cosine": (
        "train.schedule cosine: the curve now ends at the new last step. If the run gets longer, "
        "steps after the saved one have a higher rate than the end of the old curve"
    ),
    "step": "train.schedule step: train.lr_milestones stay; those in the new epochs take effect",
    "wsd": (
        "train.schedule wsd: the decay moves to the end of the new length. The saved weights have "
        "been through the old decay, as far as it came"
    ),
}
OWN_SCHEDULE = "train.schedule {}: it is called with the new number of steps from the saved one on"


def schedule_note(was: Train, now: Train) -> str | None:
    """Return what another length does to the learning rate; None where the length stays."""
    if (was.epochs, was.max_steps) == (now.epochs, now.max_steps):
        return None
    return SCHEDULES.get(now.schedule, OWN_SCHEDULE.format(now.schedule))


def check(run_dir: RunDir, was: Train, now: Train) -> None:
    """Raises: UserError unless a complete run certainly gets more steps by its changed spec."""
    result = records.read(Result, run_dir.result)
    done = (result and result.global_step) or 0
    total = _total(run_dir) or done
    complete = f"{run_dir.run_id} is complete after {done} steps, so nothing is changed"
    if now.max_steps is not None:
        is_longer = now.max_steps > max(total, was.max_steps or 0)
    else:
        is_longer = was.max_steps is None and now.epochs > was.epochs
    if not is_longer:
        raise UserError(
            f"{complete}\n  hint: a greater train.epochs (or train.max_steps, where that is set) "
            "lets it train on; --checkpoint NAME continues from an older checkpoint"
        )
    patience = now.early_stop_patience
    if done < total and patience is not None and patience <= (was.early_stop_patience or 0):
        raise UserError(
            f"{complete}: train.early_stop_patience ended it, and would end it again at once\n"
            "  hint: set that to a greater number, or to null, too"
        )


def check_end(now: Train, done: int, is_new_run: bool = False) -> None:
    """Raise UserError where train.max_steps leaves no step after those that are done.

    A run that has saved its last step may still become complete; a new run must do a step. How many
    steps train.epochs is, the trainer knows.
    """
    if now.max_steps is not None and now.max_steps < done + is_new_run:
        raise UserError(
            f"train.max_steps {now.max_steps} leaves no step after the {done} that are done, so "
            f"nothing is changed{HINT}a greater train.max_steps, or an older checkpoint"
        )


def _total(run_dir: RunDir) -> int | None:
    """Return the number of steps that the run was to do, as the trainer noted it."""
    progress = records.read_leniently(Progress, run_dir.progress)
    return None if progress is None else progress.total


def reopen(run_dir: RunDir) -> Revision:
    """Return the change by which a complete run may go on.

    The record of the last attempt comes first: until result.json is gone the run stays complete.
    """
    texts: dict[Path, str | None] = {}
    last = fact_reader.read_newest(run_dir).last
    reason = "all steps were done; a user resumed the run for more"
    if last is not None and last.decision is Action.DONE:
        entry = corrected_record(last, Decision(Action.HOLD, last.cause, reason), None)
        text = shared_files.read_text(run_dir.attempts)
        texts[run_dir.attempts] = f"{text}{json.dumps(records.encode(entry))}\n"
    return revision.of_files(run_dir, texts | {run_dir.result: None})
