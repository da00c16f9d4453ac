"""What the trainer finds in this room."""

from functools import partial
from typing import Any

from . import data_sets, models, objectives, schedules
from .image import Image


def parts(key: str) -> dict[str, Any]:
    """Return the built-in parts of a training by name.

    A model is a function of the data's facts and a batch, which returns what makes the model.
    """
    by_key: dict[str, dict[str, Any]] = {
        "model": {name: partial(models.fitted, name) for name in models.BUILT_IN},
        "objective": objectives.BUILT_IN,
        "dataset": data_sets.BUILT_IN,
        "transform": {"image": Image},
        "schedule": schedules.BUILT_IN,
    }
    return by_key.get(key, {})
