"""Transforms of whole batches on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..contract import Train
from ..errors import UserError
from ..hooks import parts
from ..user_code import call, load
from .sample_rng import SampleRandom

# (inputs float32 [n, ...], the samples' random numbers, or None in evaluation) -> inputs. With an
# attribute takes_batch that is true the first argument and the result are a whole batch; with
# takes_bytes uint8 inputs are not scaled to float32 before.
Transform = Callable[[Any, SampleRandom | None], Any]


def create(train: Train) -> Transform | None:
    """Return the transform of `train.transform`; None for no transform. Raises: UserError."""
    if (name := train.transform) is None:
        return None
    function = load("train.transform", name, parts("transform"))
    transform: Transform = call("train.transform", function, train.transform_args)
    if not callable(transform):
        raise UserError(f"train.transform: {name} returns {transform!r}, which cannot be called")
    return transform
