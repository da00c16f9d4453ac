"""What the trainer finds in this plugin."""

from typing import Any

from . import data_sets, models, objectives, schedules
from .image import Image


def parts(key: str) -> dict[str, Any]:
    """Return the parts of a training of this plugin by name.

    A model is a function of the data's facts and a batch, which returns what makes the model.
    """
    by_key: dict[str, dict[str, Any]] = {
        "model": models.BUILT_IN,
        "objective": objectives.BUILT_IN,
        "dataset": data_sets.BUILT_IN,
        "transform": {"image": Image},
        "schedule": {"wsd": schedules.wsd},
    }
    return by_key.get(key, {})
