"""The frozen spec of a run: as its user wrote it, and how another one differs from it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import hooks
from ..base import files
from ..base.errors import UserError
from ..contract import records
from ..contract.problems import KeyPath, Problem, SpecError, dotted
from ..contract.records.frozen import Overrides, Provenance
from ..contract.rundir import RunDir
from ..contract.spec import Spec

if TYPE_CHECKING:
    from ..config.loaded import LoadedSpec

FIXED = ("name", "runs_root", "dir_mode")  # the run directory was made with them
FREE = (
    *("slurm.", "checkpoint.", "log.", "profile.", "hooks.", "notify."),
    *("launch.num_workers", "launch.hang_timeout_s", "launch.stop_check_steps"),
    *("launch.allow_public_rendezvous", "launch.interface", "launch.max_crashes"),
)
SHAPE = ("slurm.nodes", "slurm.gpus_per_node")  # the number of ranks follows from them

Differences = dict[KeyPath, tuple[Any, Any]]


def reload(run_dir: RunDir, overrides: Sequence[str]) -> LoadedSpec:
    """Return the user's file with all overrides so far and these.

    Problems that only a newer kit finds, without these, do not count. Raises: SpecError, UserError.
    """
    from ..config.load import load

    frozen = records.read(Overrides, run_dir.overrides)
    if frozen is None:  # then this resume would undo those of submit and of earlier resumes
        what = f"{run_dir.overrides} is missing, and the spec cannot be changed without it"
        raise UserError(what, "resume without SET, or submit a new run with train.init_from")
    before: Sequence[Problem] = ()
    try:
        load(run_dir.spec_yaml, frozen.arguments, is_frozen=True)
    except SpecError as error:
        before = error.problems
    loaded = load(run_dir.spec_yaml, [*frozen.arguments, *overrides], is_frozen=True, known=before)
    known = records.read(Provenance, run_dir.provenance)
    spec, launch = loaded.spec, Spec.read(run_dir.spec).launch
    typed = {each.partition("=")[0] for each in overrides}
    if "launch.script" in typed and known is not None and known.repository is not None:
        spec, *_ = hooks.prepare_code(spec, Path(known.repository))
    # As the submit found them: the script relative to its repository, a Python with torch.
    kept = {
        key: getattr(launch, key) for key in ("script", "python") if f"launch.{key}" not in typed
    }
    spec = dataclasses.replace(spec, launch=dataclasses.replace(spec.launch, **kept))
    return dataclasses.replace(loaded, spec=spec)


def differences(was: Spec, now: Spec) -> Differences:
    """Return (old, new) of each key that differs; None for an entry that a mapping lacks."""
    old, new = (dict(_flat(dataclasses.asdict(spec), ())) for spec in (was, now))
    paths = [*old, *(path for path in new if path not in old)]
    pairs = {path: (old.get(path), new.get(path)) for path in paths}
    return {path: pair for path, pair in pairs.items() if pair[0] != pair[1]}


def _flat(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _flat(item, (*path, name))
    else:
        yield path, value


def is_free(path: KeyPath) -> bool:
    """Return whether a key cannot change any bit of the result."""
    return dotted(path).startswith(FREE) and dotted(path) not in SHAPE


def setup_script_of(run_dir: RunDir, lines: Sequence[str]) -> str:
    """Return the text of setup.sh with other setup lines of the user."""
    from .freeze import setup_script

    known = records.read(Provenance, run_dir.provenance)  # None: a scratch purge removed it
    return setup_script(known.interpreter if known else sys.executable, lines)


def restore_setup(run_dir: RunDir) -> None:
    """Write setup.sh from the spec if a scratch purge deleted it."""
    if not files.is_file(run_dir.setup):
        spec = Spec.read(run_dir.spec)
        files.write_atomic(run_dir.setup, setup_script_of(run_dir, spec.setup))
