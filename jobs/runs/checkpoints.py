"""The checkpoints of a run: the newest one, and those that were found damaged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_job_kit.jobs import records, shared_files
from slurm_job_kit.jobs.checkpoint_names import (
    BEST,
    QUARANTINE_PREFIX,
    checkpoint_name,
    checkpoint_names,
    checkpoint_step,
    newest_first,
)
from slurm_job_kit.jobs.errors import UserError
from slurm_job_kit.jobs.records.training import SavedCheckpoint
from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.spec import Spec


def newest(
    run_dir: RunDir,
    is_users: bool,
    names: Iterable[str] | None = None,
    outputs: Sequence[str] = (),
) -> str | None:
    """Return the name of the newest committed checkpoint; None if there is none.

    names: those in the folder of checkpoints, if the caller has listed it. outputs: launch.outputs.

    A user's script (`is_users`) names its files as it likes. If its kit_stop.py has reported the
    step of its newest checkpoint, the name is made of that step. Else it is the time and path of
    the newest file that script_files finds. `is_newer` compares two of any kind.
    """
    if not is_users:
        known = committed(run_dir) if names is None else newest_first(names)
        return next(iter(known), None)
    saved = records.read_leniently(SavedCheckpoint, run_dir.saved)
    if saved is not None:
        return checkpoint_name(saved.step)
    from slurm_job_kit.jobs.runs import script_files

    return script_files.newest(run_dir, outputs)


def committed(run_dir: RunDir) -> list[str]:
    """Return the names of the trainer's committed checkpoints, newest first."""
    try:
        return checkpoint_names(run_dir.checkpoints)
    except FileNotFoundError:
        return []


def find(run_dir: RunDir, text: str) -> str:
    """The name of the committed checkpoint `latest`, `best`, `step-00000012`, `step-12` or `12`.

    Raises: UserError.
    """
    names = committed(run_dir)
    if text == "latest":
        name = names[0] if names else text
    elif text == "best":
        pointer = run_dir.checkpoints / BEST
        name = shared_files.read_text(pointer).strip() if shared_files.is_file(pointer) else text
    else:
        number = text.removeprefix("step-")
        name = checkpoint_name(int(number)) if number.isdecimal() else text
    is_name = checkpoint_step(name) is not None  # by its name: the listing may be old
    if name not in names and not (is_name and shared_files.is_dir(run_dir.checkpoints / name)):
        has = ", ".join(names) or "none"
        raise UserError(f"{run_dir.run_id} has no checkpoint {text}\n  hint: it has {has}")
    return name


def quarantined(names: Iterable[str]) -> list[str]:
    """Return those of the names that are damaged checkpoints, the oldest step first.

    names: those in the folder of checkpoints.
    """
    found = (name for name in names if name.startswith(QUARANTINE_PREFIX))
    return sorted(found, key=lambda name: (_quarantined_step(name), name))


def _quarantined_step(name: str) -> int:
    """Return the step of a damaged checkpoint, whose name may end in a number such as `.2`."""
    return checkpoint_step(name.removeprefix(QUARANTINE_PREFIX).partition(".")[0]) or 0


def is_foreign(run_dir: RunDir) -> bool:
    """Whether the ranks run a user's script, not the kit's trainer; False without a spec.json."""
    try:
        return not Spec.read(run_dir.spec).launch.is_trainer
    except FileNotFoundError:
        return False
