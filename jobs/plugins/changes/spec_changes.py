"""What a resume may change in a frozen spec: freely, if confirmed, or never; and the record."""

import contextlib
import hashlib
import time
from collections.abc import Sequence
from pathlib import Path

from ...base import files, installation
from ...base.console import print_line
from ...base.errors import UserError
from ...config.loaded import LoadedSpec
from ...contract import records
from ...contract.batch_sizes import global_batch_size
from ...contract.checkpoint import reader
from ...contract.checkpoint.names import checkpoint_names, checkpoint_step
from ...contract.problems import dotted, format_value
from ...contract.records.frozen import Overrides, Revision, SpecChange
from ...contract.rundir import RunDir
from ...contract.spec import Spec
from ...runs import revision
from ...runs.frozen_spec import FIXED, Differences, differences, is_free, setup_script_of
from . import extension


def change(
    run_dir: RunDir, loaded: LoadedSpec, is_confirmed: bool, checkpoint: str | None = None
) -> Revision:
    """Return the change of the frozen spec; what results depend on is recorded in changes.jsonl.

    checkpoint: the name of that to go on from, if there is one.
    Raises: UserError for changes that need a confirmation or are forbidden.
    """
    text, spec = files.read_text(run_dir.spec), loaded.spec
    was = Spec.from_json(text)
    changed = differences(was, spec)
    weighty = {path: both for path, both in changed.items() if not is_free(path)}
    if fixed := [str(path[0]) for path in weighty if path[0] in FIXED]:
        what = f"{', '.join(fixed)} cannot change: the run directory was made with it"
        raise UserError(f"resume: {what}", "submit a new run")
    _refuse_other_batch(run_dir, was, spec)
    if spec.launch.is_trainer:
        extension.check_end(spec.train, checkpoint_step(checkpoint or "") or 0)
    lines = format_changes(weighty)
    confirm("resume: the result depends on what this changes", lines, is_confirmed)
    new: dict[Path, str | None] = {
        run_dir.spec: spec.to_json(),
        run_dir.overrides: records.text(Overrides(tuple(loaded.overrides))),
    }
    if any(path[0] == "setup" for path in weighty):
        new[run_dir.setup] = setup_script_of(run_dir, spec.setup)
    # Before the spec: the trainer accepts another spec than its checkpoint's only with a record. A
    # free change must keep one that was confirmed.
    confirmed = [each.spec_sha256 for each in records.read_lines(SpecChange, run_dir.changes)]
    if weighty or _sha256(text) in confirmed:
        _record(run_dir, changed, spec.to_json())
    return revision.of_files(run_dir, new)


def confirm(what: str, lines: Sequence[str], is_confirmed: bool) -> None:
    """Print differences. Raises: UserError where there are some without a --yes."""
    if lines and not is_confirmed:
        shown = "".join(f"\n  {line}" for line in lines)
        raise UserError(f"{what}{shown}", f"repeat it with {installation.option('--yes')}")
    if lines:
        print_line("\n".join(lines))


def accept(run_dir: RunDir, other: Spec) -> None:
    """Record the spec of a new run as one that continues a checkpoint of the spec `other`."""
    spec = Spec.read(run_dir.spec)
    _record(run_dir, differences(other, spec), files.read_text(run_dir.spec))


def _refuse_other_batch(run_dir: RunDir, was: Spec, now: Spec) -> None:
    """Raise UserError where the checkpoints of the run do not fit the new global batch.

    Where the number of ranks differs from the spec's, such as on another machine, the spec does not
    say which batch was saved: the trainer compares then, and refuses a damaged manifest.
    """
    old, new = global_batch_size(was), global_batch_size(now)
    saved = checkpoint_names(run_dir.checkpoints)
    if old == new or not saved:
        return
    with contextlib.suppress(reader.DamageError):
        if reader.read_manifest(run_dir.checkpoints / saved[0]).global_batch_size == old:
            what = f"resume: the global batch would change from {old} to {new} samples, and a run"
            hint = f"set train.global_batch_size={old} and train.grad_accum_steps=1, or begin a "
            hint += "new run with train.init_from"
            raise UserError(f"{what} with a checkpoint keeps its batch", hint)


def format_changes(changed: Differences) -> list[str]:
    """Return a line for each key: `train.lr: 0.1 -> 0.05`."""
    pairs = ((dotted(path), *map(format_value, pair)) for path, pair in changed.items())
    return [f"{key}: {old} -> {new}" for key, old, new in pairs]


def _record(run_dir: RunDir, changed: Differences, text: str) -> None:
    changes = {dotted(path): pair for path, pair in changed.items()}
    record = SpecChange(round(time.time(), 3), changes, _sha256(text))
    records.append(run_dir.changes, record)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
