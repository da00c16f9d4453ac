"""A schedule of the learning rate: from a step, counted from 0, to a factor of train.lr."""

from ...contract import Train
from ...data.batches import TrainingLength


def wsd(step: int, length: TrainingLength, train: Train) -> float:
    """Warm-up, stable, decay: constant, then linear down to 0.

    Source: Hu et al., "MiniCPM: Unveiling the Potential of Small Language Models", section 4.
    """
    decay_steps = max(1, round(length.total_steps * train.lr_decay_fraction))
    return min(1.0, max(0, length.total_steps - step) / decay_steps)
