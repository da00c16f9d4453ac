"""The named parts of a training that plugins bring, and the plugins that have a function.

`jobs.plugins.PLUGINS` says which plugin has which function in trainer/plugins/NAME/hooks.py.
"""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from .contract import PLUGINS


def functions(name: str) -> Iterator[Callable[..., Any]]:
    """Yield the function of this name of each plugin that has one, in the order of the plugins."""
    for plugin, each in PLUGINS.items():
        if name in each.trainer_hooks:
            yield getattr(importlib.import_module(f".plugins.{plugin}.hooks", __package__), name)


def parts(key: str) -> dict[str, Any]:
    """Return the parts of the plugins by the names that a key of the section train takes.

    key: such as "model", "objective", "dataset", "transform" or "strategy".
    """
    return {name: part for hook in functions("parts") for name, part in hook(key).items()}
