"""When a training of another library saves and stops, and what its own checkpoint lacks.

That is the state of the random generators of each rank and the position in the data. All methods
are called by all ranks after the same steps.
"""

from __future__ import annotations

import datetime
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ...contract import files
from . import whole
from .batches import ResumableBatches
from .kit_stop import Stop

OWN_FILES = "kit-rank-*.pt"  # one of each rank
CHECK_LIMIT = datetime.timedelta(hours=1)  # for the check sums of the checkpoint of a large model


class Keeper:
    """The stop, the whole checkpoints, and the state that the library does not save.

    folder: of the checkpoints; by default that of the kit's run, else ./checkpoints.
    batches: the sampler of the training; without it the library's own resume finds the samples.
    save_every: steps between two checkpoints besides that at a stop.
    every: calls between two agreements of the ranks on a stop; by default about every 50 ms.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        batches: ResumableBatches | None = None,
        save_every: int | None = None,
        every: int | None = None,
    ) -> None:
        self.folder = Path(folder or os.environ.get("KIT_CHECKPOINT_DIR") or "checkpoints")
        self.batches, self.save_every, self.every = batches, save_every, every
        self.rank = int(os.environ.get("RANK", "0"))
        self._own_file = OWN_FILES.replace("*", f"{self.rank:05d}")
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.step, self.epoch, self.num_batches = 0, 0, 0  # the last two: the position in the data
        self.watch()

    def watch(self) -> None:
        """Take the stop signals, also from a library that has taken them since."""
        self.stop = Stop(self.every)

    def newest(self) -> Path | None:
        """Return the newest whole checkpoint, the same for all ranks: rank 0 checks the files."""
        if self.world_size == 1:
            return whole.newest(self.folder)
        # torchrun's own store: perhaps there is no process group yet.
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(*address, timeout=CHECK_LIMIT, wait_for_workers=False)
        key = f"slurm_job_kit/newest/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        if self.rank == 0:
            store.set(key, str(whole.newest(self.folder) or ""))
        text = store.get(key).decode()
        return Path(text) if text else None

    def restore(self, checkpoint: Path, is_end_skipped: bool = False) -> None:
        """Continue at the step and the position of a checkpoint, with its random generators.

        is_end_skipped: the library begins no loader for an epoch that has no batch left.
        """
        ranks = len(files.files_in(checkpoint, OWN_FILES))
        if ranks != self.world_size:
            raise ValueError(f"{checkpoint} is of {ranks} ranks, not of {self.world_size}")
        state = torch.load(checkpoint / self._own_file, weights_only=True)
        self.step, self.epoch, self.num_batches = state["position"]
        if self.batches is None:
            set_generators(state["generators"])
            return
        if is_end_skipped and self.num_batches == self.batches.num_steps:
            self.epoch, self.num_batches = self.epoch + 1, 0
        self.batches.seek(self.epoch, self.num_batches)
        # In the middle of an epoch the run without a stop did not draw what a loader draws first.
        self.batches.before_next = lambda: set_generators(state["generators"])

    def count_batch(self) -> None:
        """Note that a batch of the loader has been trained on."""
        if self.batches is not None and self.batches.epoch != self.epoch:
            self.epoch, self.num_batches = self.batches.epoch, 0
        self.num_batches += 1

    def after_step(
        self, total: float | None, write: Callable[[Path], Any], metrics: dict[str, Any]
    ) -> None:
        """Report the step `self.step`, save if it is time to; at a stop save and leave.

        write: saves the library's own state in a folder; called by all ranks.
        """
        self.stop.progress(self.step, total, **metrics)
        is_stop = self.stop.should_stop(self.step)
        if is_stop or (self.save_every and self.step % self.save_every == 0):
            self.save(write)
        if is_stop:
            self.stop.stopped()

    def completed(self) -> None:
        """Exit with 0 at the end of the training. Raises: ValueError if it did no step."""
        if self.step == 0:
            what = f"does its loader have a batch for each of {self.world_size} ranks"
            raise ValueError(f"the training ends after 0 steps: {what}, and its length a step?")
        self.stop.completed()

    def save(self, write: Callable[[Path], Any]) -> None:
        """Save a checkpoint, which appears under its name when all files are complete."""
        if self.rank == 0:
            whole.new_folder(self.folder, self.step)
        barrier()  # all ranks: each writes into the folder
        folder = whole.temporary_folder(self.folder, self.step)
        position = (self.step, self.epoch, self.num_batches)
        torch.save({"position": position, "generators": generators()}, folder / self._own_file)
        write(folder)
        barrier()  # all ranks: rank 0 names the checkpoint when all files are written
        if self.rank == 0:
            whole.commit(self.folder, self.step)
            self.stop.saved(self.step)


class OwnLoop(Keeper):
    """A Keeper that counts the batches and steps of a loop of one's own, of Fabric or accelerate.

    The loop calls `resume`, then `after_batch`. total: steps of the whole training, or None.
    """

    def __init__(
        self,
        total: float | None,
        write: Callable[[Path], Any],
        read: Callable[[Path], Any],
        **options: Any,
    ) -> None:
        """write, read: save and load the library's state in a folder; called by all ranks."""
        super().__init__(**options)
        self.total, self.write, self.read = total, write, read

    def resume(self) -> None:
        """Load the newest whole checkpoint, if there is one; `self.epoch` is its epoch."""
        if (checkpoint := self.newest()) is not None:
            self.read(checkpoint)
            self.restore(checkpoint)

    def after_batch(self, is_step: bool = True, **metrics: Any) -> None:
        """Call it last in the loop's body, on all ranks. is_step: the optimizer has stepped."""
        self.count_batch()
        if is_step:
            self.step += 1
            self.after_step(self.total, self.write, metrics)


def barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


def generators() -> dict[str, Any]:
    """Return the states of the random generators of this process."""
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    if numpy := sys.modules.get("numpy"):
        name, keys, *rest = numpy.random.get_state()
        states["numpy"] = (name, keys.tolist(), *rest)
    return states


def set_generators(states: dict[str, Any]) -> None:
    """Give the random generators the states of `generators`."""
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])
    if "numpy" in states and (numpy := sys.modules.get("numpy")):
        numpy.random.set_state(states["numpy"])
