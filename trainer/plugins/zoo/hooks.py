"""What the trainer finds in this plugin."""

from typing import Any

from ...contract import Train
from ...data.batches import TrainingLength
from . import models, objectives
from .image import Image
from .image_files import cifar10, image_folder
from .tokens import python_source, tokens


def parts(key: str) -> dict[str, Any]:
    """Return the parts of a training of this plugin by name.

    A model is a function of the data's facts and a batch, which returns what makes the model.
    """
    datasets = (cifar10, image_folder, python_source, tokens)
    by_key: dict[str, dict[str, Any]] = {
        "model": models.BUILT_IN,
        "objective": objectives.BUILT_IN,
        "dataset": {each.__name__: each for each in datasets},
        "transform": {"image": Image},
        "schedule": {"wsd": wsd},
    }
    return by_key.get(key, {})


def wsd(step: int, length: TrainingLength, train: Train) -> float:
    """Warm-up, stable, decay: constant, then linear down to 0.

    Source: Hu et al., "MiniCPM: Unveiling the Potential of Small Language Models", section 4.
    """
    decay_steps = max(1, round(length.total_steps * train.lr_decay_fraction))
    return min(1.0, max(0, length.total_steps - step) / decay_steps)
