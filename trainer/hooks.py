"""All that a room may add to the core of the trainer: named parts, and callbacks of a training.

`jobs.rooms.ROOMS` says which room has which of the two; trainer/rooms/NAME/hooks.py has the
function, with the same name and types as the one here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .contract import ROOMS

if TYPE_CHECKING:
    import torch

    from .loop import Loop
    from .process.rank_process import RankProcess
    from .process.run_handle import RankContext


class Pulse:
    """What this rank does now, which a thread of a room may read at any time.

    now: a phase of the start-up, or a part of the training loop with its step. Each beat is a tuple
    of its own.
    """

    def __init__(self) -> None:
        self.now: tuple[str, int | None] = ("import", None)

    def beat(self, what: str, step: int | None = None) -> None:
        """Record that `what` begins. Costs an attribute write."""
        self.now = (what, step)


class Callback:
    """What a room does beside a training, in the order of the calls; here each does nothing.

    The main thread of every rank calls each method at the same point, but `reported` and `saved`,
    which rank 0 alone calls. The training waits meanwhile. An error that a method raises ends the
    rank. A rank that fails calls nothing more.
    """

    def connected(self, rank: RankProcess, device: torch.device) -> None:
        """All ranks are connected; rank 0 finds the run next."""

    def opened(self, context: RankContext) -> None:
        """The run is known; data and model are built next, perhaps with a fork of this rank.

        So a thread starts in `restored`.
        """

    def restored(self, loop: Loop) -> None:
        """The checkpoint is loaded, if there is one; the first step comes next."""

    def before_step(self, step: int) -> None:
        """Optimizer step `step`, from 1, comes next."""

    def after_step(self, step: int) -> None:
        """Optimizer step `step` is done; the device may still compute it."""

    def reported(self, step: int, values: Mapping[str, float]) -> None:
        """Rank 0 logged these values of a step: of a training or of an evaluation."""

    def saved(self, step: int, path: Path) -> None:
        """Rank 0 sees that the checkpoint of a step is committed, also that of a best evaluation.

        path: absolute; a later commit may delete it (checkpoint.keep_last).
        """

    def end(self) -> None:
        """The training is completed or stopped, everything is committed, and the marker is written.

        All ranks wait for the slowest; at a preemption Slurm's grace is still running.
        """


def _rooms_with(hook: str) -> Iterator[Callable[..., Any]]:
    for name, room in ROOMS.items():
        if hook in room.trainer_hooks:
            yield getattr(importlib.import_module(f".rooms.{name}.hooks", __package__), hook)


def parts(key: str) -> dict[str, Any]:
    """Return the parts of the rooms by the names that a key of the section train takes.

    key: such as "model", "objective", "dataset", "transform" or "strategy".
    """
    return {name: part for hook in _rooms_with("parts") for name, part in hook(key).items()}


def callbacks(pulse: Pulse) -> list[Callback]:
    """Return the callbacks of this rank, in the order of the rooms.

    A rank calls it before it imports torch, which a room must not import here either, and before
    it knows its run. launch.env is in the environment.
    """
    return [each for hook in _rooms_with("callbacks") for each in hook(pulse)]
