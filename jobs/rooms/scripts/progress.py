"""Whether an attempt of a user's script saved something new, where the kit can see it."""

import contextlib
import os
from dataclasses import replace
from pathlib import Path

from ... import records
from ...checkpoint.names import is_newer
from ...rundir import RunDir
from ...runs.interpret import AttemptFacts
from .work import Work, ask_for_all, record_of


def has_progress(run_dir: RunDir, facts: AttemptFacts) -> bool:
    """Return whether there is a newer file than at the start, or a later saved step.

    Of a script that begins again at step 0, no saved step is new before it is behind all earlier
    attempts.
    """
    begun = records.read(Work, record_of(run_dir))
    if (newest_file(run_dir) or "") > ((begun and begun.newest_file) or ""):
        return True
    before = [each.checkpoint for each in (facts.plan, *facts.attempts) if each is not None]
    return all(is_newer(facts.saved.checkpoint, each) for each in [*before, None])


def note_begin(run_dir: RunDir) -> None:
    """Keep which file is the newest now, before the next attempt begins."""
    known = records.read(Work, record_of(run_dir)) or Work()
    records.write(record_of(run_dir), replace(known, newest_file=newest_file(run_dir)))


def newest_file(run_dir: RunDir) -> str | None:
    """Return time (ns) and path of the file in the folder of checkpoints that changed last.

    The times have a fixed width: the greater of two such strings is that of the newer file.
    """
    times = []
    with contextlib.suppress(OSError):
        ask_for_all(run_dir.checkpoints)  # a script overwrites last.ckpt in place
    for folder, _, names in os.walk(run_dir.checkpoints):
        for path in (Path(folder, name) for name in names):
            with contextlib.suppress(OSError):  # the script replaces it right now
                times.append((path.stat().st_mtime_ns, path.relative_to(run_dir.path)))
    return "{:020d} {}".format(*max(times)) if times else None
