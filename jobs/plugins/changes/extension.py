"""Whether a complete run gets more steps."""

import json
from pathlib import Path

from ...attempt.decision import Decision
from ...attempt.record_writer import corrected_record
from ...base import files
from ...base.errors import HINT, UserError
from ...contract import records
from ...contract.records.ended import Action
from ...contract.records.frozen import Revision
from ...contract.records.training import Progress, Result
from ...contract.rundir import RunDir
from ...contract.spec import Spec, Train
from ...runs import fact_reader, revision


def check(run_dir: RunDir, spec: Spec, now: Train) -> None:
    """Raises: UserError unless a complete run certainly gets more steps by its changed spec."""
    if not spec.launch.is_trainer:
        raise UserError(f"{run_dir.run_id} is complete{HINT}to train on, submit a new run")
    was = spec.train
    result = records.read(Result, run_dir.result)
    progress = records.read_leniently(Progress, run_dir.progress)
    done = (result and result.global_step) or 0
    total = (progress and progress.total) or done
    patience = now.early_stop_patience
    if done < total and was.early_stop_patience is not None:
        is_longer = patience is None or patience > was.early_stop_patience
    elif now.max_steps is not None:
        is_longer = now.max_steps > max(total, was.max_steps or 0)
    else:
        is_longer = was.max_steps is None and now.epochs > was.epochs
    if not is_longer:
        hint = "to train on, raise train.epochs, or what ended it: train.max_steps, "
        hint += "train.early_stop_patience; or choose a --checkpoint"
        raise UserError(f"{run_dir.run_id} is complete after {done} of {total} steps", hint)


def check_end(now: Train, done: int, is_new_run: bool = False) -> None:
    """Raise UserError where train.max_steps leaves no step after those that are done.

    A run that has saved its last step may still become complete; a new run must do a step. How many
    steps train.epochs is, the trainer knows.
    """
    if now.max_steps is not None and now.max_steps < done + is_new_run:
        what = f"train.max_steps {now.max_steps} leaves no step after the {done} that are done"
        raise UserError(f"{what}{HINT}raise train.max_steps, or choose an older checkpoint")


def reopen(run_dir: RunDir) -> Revision:
    """Return the change by which a complete run may go on.

    The record of the last attempt comes first: until result.json is gone the run stays complete.
    """
    texts: dict[Path, str | None] = {}
    last = fact_reader.read_newest(run_dir).last
    reason = "all steps were done; a user resumed the run for more"
    if last is not None and last.decision is Action.DONE:
        entry = corrected_record(last, Decision(Action.HOLD, last.cause, reason), None)
        text = files.read_text(run_dir.attempts)
        texts[run_dir.attempts] = f"{text}{json.dumps(records.encode(entry))}\n"
    return revision.of_files(run_dir, texts | {run_dir.result: None})
