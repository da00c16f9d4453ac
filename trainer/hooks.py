"""All that a room may add to the core of the trainer: named parts, and callbacks of a training.

`jobs.rooms.ROOMS` says which room has which of the two; trainer/rooms/NAME/hooks.py has the
function, with the same name and types as the one here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .contract import ROOMS

if TYPE_CHECKING:
    from .process.run_handle import RankContext


class Callback:
    """What a room does beside a training; each method does nothing here."""


def _rooms_with(hook: str) -> Iterator[Callable[..., Any]]:
    for name, room in ROOMS.items():
        if hook in room.trainer_hooks:
            yield getattr(importlib.import_module(f".rooms.{name}.hooks", __package__), hook)


def parts(key: str) -> dict[str, Any]:
    """Return the parts of the rooms by the names that a key of the section train takes.

    key: such as "model", "objective", "dataset", "transform" or "strategy".
    """
    return {name: part for hook in _rooms_with("parts") for name, part in hook(key).items()}


def callbacks(context: RankContext) -> list[Callback]:
    """Return the callbacks of a training, in the order of the rooms."""
    return [each for hook in _rooms_with("callbacks") for each in hook(context)]
