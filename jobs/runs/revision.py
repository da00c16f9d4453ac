"""Changes a run between two attempts, all of it or nothing.

A resume may change the spec, the code, the checkpoint from which the run goes on, and whether the
run is over: several files. So it writes the whole change into revision.json, carries it out, and
removes that file. If it is killed meanwhile, the next resume or start of a job carries it out.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..base import files
from ..base.errors import UserError
from ..contract import records
from ..contract.records.frozen import Revision
from ..contract.rundir import RunDir


@contextlib.contextmanager
def changed(revisions: Mapping[RunDir, Revision]) -> Iterator[None]:
    """Run a block in which runs are changed; if it fails, they are as they were.

    Only while no job or process of these runs writes. A full disk may keep the change back from its
    revision.json: then a run stays changed, as a whole.
    """
    before = {
        run_dir: Revision(
            moves={to: name for name, to in reversed([*new.moves.items()])},
            files={name: files.text_of(run_dir.path / name) for name in new.files},
            links={name: os.readlink(run_dir.path / name) for name in new.links},
        )
        for run_dir, new in revisions.items()
    }
    try:
        for run_dir, new in revisions.items():
            _change(run_dir, new)
        yield
    except BaseException:
        for run_dir, old in before.items():
            # The first error is the cause.
            with contextlib.suppress(OSError, UserError):
                _change(run_dir, old)
        raise


def complete(run_dir: RunDir) -> None:
    """Carry out the change in revision.json, if there is one. Raises: RecordError, OSError."""
    revision = records.read(Revision, run_dir.revision)
    if revision is None:
        return
    for old, new in revision.moves.items():
        files.ask_again(run_dir.path / old)
        with contextlib.suppress(FileNotFoundError):  # it was renamed before the kill
            os.rename(run_dir.path / old, run_dir.path / new)
    for name, text in revision.files.items():
        if text is None:
            files.ask_again(run_dir.path / name)
            (run_dir.path / name).unlink(missing_ok=True)
        else:
            files.write_atomic(run_dir.path / name, text)
    for name, target in revision.links.items():
        files.relink(run_dir.path / name, target)
    run_dir.revision.unlink()


def _change(run_dir: RunDir, revision: Revision) -> None:
    if revision != Revision():
        records.write(run_dir.revision, revision)
        complete(run_dir)


def of_files(run_dir: RunDir, texts: Mapping[Path, str | None]) -> Revision:
    """Return the change that gives files these texts; None removes a file."""
    return Revision(files={str(x.relative_to(run_dir.path)): text for x, text in texts.items()})
