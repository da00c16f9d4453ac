"""Whether this attempt may still write to the run: a newer one may own it by now. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.rundir import read_json
from trainer.errors import Superseded

if TYPE_CHECKING:
    from trainer.dist.run_handle import Run


def check_owner(run: Run) -> None:
    """A node that was cut off may come back after its job was requeued: it must change nothing.

    Raises: Superseded.
    """
    owner = read_json(run.dir.owner)
    if owner is None or owner["attempt"] != run.attempt:
        now = f"{run.dir.owner} is gone, so nobody"
        if owner is not None:
            now = f"attempt {owner['attempt']}"
        raise Superseded(
            f"{now} owns {run.dir.path} now, this is attempt {run.attempt}: nothing committed"
        )
