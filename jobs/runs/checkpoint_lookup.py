"""The checkpoints of a run: the newest one, and those that were found damaged."""

from collections.abc import Iterable

from ..contract import records
from ..contract.checkpoint.names import (
    QUARANTINE_PREFIX,
    checkpoint_name,
    checkpoint_names,
    checkpoint_step,
)
from ..contract.records.training import SavedCheckpoint
from ..contract.rundir import RunDir


def newest(run_dir: RunDir, is_users: bool) -> str | None:
    """Return the name of the newest committed checkpoint; None if there is none.

    A user's script (`is_users`) names its files as it likes: the name is made of the step that its
    kit_stop.py has reported as saved.
    """
    if not is_users:
        return next(iter(checkpoint_names(run_dir.checkpoints)), None)
    saved = records.read_leniently(SavedCheckpoint, run_dir.saved)
    return None if saved is None else checkpoint_name(saved.step)


def quarantined_names(names: Iterable[str]) -> list[str]:
    """Return those of the names that are damaged checkpoints, the oldest step first.

    names: those in the folder of checkpoints.
    """

    def step(name: str) -> int:  # it may end in a number such as `.2`
        return checkpoint_step(name.removeprefix(QUARANTINE_PREFIX).partition(".")[0]) or 0

    damaged = (name for name in names if name.startswith(QUARANTINE_PREFIX))
    return sorted(damaged, key=lambda name: (step(name), name))
