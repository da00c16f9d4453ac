"""The newest checkpoint of a run."""

from ..contract import records
from ..contract.checkpoint.names import checkpoint_name, checkpoint_names
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
