"""The named parts of a training that rooms bring, and the rooms that have a function.

`jobs.rooms.ROOMS` says which room has which function in trainer/rooms/NAME/hooks.py.
"""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from .contract import ROOMS


def functions(name: str) -> Iterator[Callable[..., Any]]:
    """Yield the function of this name of each room that has one, in the order of the rooms."""
    for room, each in ROOMS.items():
        if name in each.trainer_hooks:
            yield getattr(importlib.import_module(f".rooms.{room}.hooks", __package__), name)


def parts(key: str) -> dict[str, Any]:
    """Return the parts of the rooms by the names that a key of the section train takes.

    key: such as "model", "objective", "dataset", "transform" or "strategy".
    """
    return {name: part for hook in functions("parts") for name, part in hook(key).items()}
