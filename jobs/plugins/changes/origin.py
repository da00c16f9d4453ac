"""Begins a run from the whole state of another run: weights, optimizer, positions."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...base.console import print_line
from ...base.errors import UserError
from ...commands.submit_claim import hold_claim
from ...contract import records
from ...contract.checkpoint.names import checkpoint_step, find_checkpoint
from ...contract.records.frozen import Provenance, StateOrigin
from ...contract.rundir import RunDir
from ...contract.spec import Spec
from ...runs import code_snapshot, lookup
from ...runs.frozen_spec import FIXED, differences, is_free
from . import checkpoint_files, extension, spec_changes


@dataclass(frozen=True)
class Origin:
    """A checkpoint of another run. is_confirmed: the user accepts the differences of the specs."""

    run_dir: RunDir
    checkpoint: str
    is_confirmed: bool

    def check(self, spec: Spec) -> None:
        """Print what the new run does otherwise than the other one.

        Raises: UserError for differences on which results depend, unless they are confirmed.
        """
        was = Spec.read(self.run_dir.spec)
        if not (was.launch.is_trainer and spec.launch.is_trainer):
            raise UserError("--from: the kit does not know the state of a script of your own")
        if spec.train.init_from is not None:
            raise UserError("--from brings the weights, too: remove train.init_from")
        extension.check_end(spec.train, checkpoint_step(self.checkpoint) or 0, is_new_run=True)
        changed = {
            path: pair
            for path, pair in differences(was, spec).items()
            if path[0] not in FIXED and not is_free(path)
        }
        what = f"submit: the spec differs from that of {self.run_dir.run_id}"
        spec_changes.confirm(what, spec_changes.format_changes(changed), self.is_confirmed)

    @contextlib.contextmanager
    def begin(self, run_dir: RunDir) -> Iterator[None]:
        """Run a block in which a new run is claimed, and has the checkpoint as its first one.

        Raises: UserError for a damaged checkpoint; OSError for one that was removed just now.
        """
        with hold_claim(run_dir):
            source = self.run_dir.checkpoints / self.checkpoint
            checkpoint_files.copy(source, run_dir.checkpoints)
            step, where = checkpoint_step(self.checkpoint) or 0, self.run_dir
            known = records.read(Provenance, run_dir.provenance)
            if known is not None:
                code = code_snapshot.digest_in(where.code.resolve().name)
                begun = StateOrigin(where.run_id, str(where.path), self.checkpoint, step, code)
                records.write(run_dir.provenance, replace(known, origin=begun))
            spec_changes.accept(run_dir, Spec.read(where.spec))
            print_line(f"begins after step {step} of {where.run_id}, from a copy of {source}")
            yield


def find(text: str, is_confirmed: bool) -> Origin:
    """Return the checkpoint that `RUN`, `RUN@step-N`, `RUN@N` or `RUN@best` names.

    Raises: UserError for an unknown run or checkpoint.
    """
    run, separator, name = text.rpartition("@")
    run_dir = lookup.find(run if separator else text)
    checkpoint = find_checkpoint(run_dir.checkpoints, name if separator else "latest")
    return Origin(run_dir, checkpoint, is_confirmed)
