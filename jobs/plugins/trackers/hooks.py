"""Checks log.trackers; gives a run that was held or cancelled its end state there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...base import installation
from ...base.console import STDERR, print_line
from ...contract.problems import Problem, format_value
from ...contract.rundir import RunDir
from ...contract.spec import TRACKERS, Spec

if TYPE_CHECKING:  # a submit needs no more than the above
    from ...runs.facts import AttemptFacts
    from ...runs.run_lock import Owner

LIMIT_S = 60.0
MODULE = f"{installation.NAME}.trainer.plugins.trackers"


def problems(spec: Spec) -> Iterator[Problem]:
    for key, names in (("trackers", spec.log.trackers), ("tracker_args", spec.log.tracker_args)):
        for name in names:
            if name not in TRACKERS and ":" not in name:
                hint = f"known: {', '.join(TRACKERS)}; or your own package.module:Class"
                yield Problem(("log", key), f"there is no tracker {format_value(name)}", hint)


def end(run_dir: RunDir, facts: AttemptFacts, me: Owner | None) -> None:
    """Start the ranks' interpreter for the end state, unless rank 0 has sent it."""
    from ...contract.records.ended import Cause
    from ...node.torchrun import variables_of_spec

    spec, result, last = facts.spec, facts.result, facts.last
    is_sent = facts.first_event("tracked") is not None and facts.is_completed
    if result is None or is_sent or not {*spec.log.trackers} - {"tensorboard"}:
        return
    is_interrupted = last is not None and last.cause is Cause.INTERRUPTED
    state = {"completed": "finished", "cancelled": "killed"}.get(
        result.status, "killed" if is_interrupted else "failed"
    )
    words = [str(run_dir.path), state, str((facts.step or 0) + 1)]
    argv = [*spec.launch.command_prefix, spec.interpreter, "-m", MODULE, *words]
    folders = (str(run_dir.code), str(run_dir.kit), os.environ.get("PYTHONPATH"))
    path = {"PYTHONPATH": os.pathsep.join(filter(None, folders))}
    try:
        subprocess.run(
            ["bash", "-c", '. "$0" && exec "$@"', str(run_dir.setup), *argv],
            cwd=run_dir.code,
            env=os.environ | variables_of_spec(spec) | path,
            stdin=subprocess.DEVNULL,
            stdout=STDERR,
            timeout=LIMIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        print_line(f"warning: log.trackers do not show that the run is {state}: {error}")
