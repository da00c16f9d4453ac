"""Makes one batch of samples: torch's default_collate, or the user's function."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.data import default_collate

from ...data.sources import Batch, is_pair
from ...errors import UserError
from ...user_code import load, user_code


class Collate:
    """The function of train.collate; torch's default_collate without one.

    A user's function is imported at its first call: where it is pickled to a worker process, the
    name is sent.
    """

    def __init__(self, name: str | None) -> None:
        self._name = name

    def __call__(self, samples: list[Any], indices: Sequence[int]) -> Batch:
        """Return a batch. indices: the numbers of the samples, for errors.

        Raises: UserError where samples differ in structure, shape or type.
        """
        if self._name is not None:
            with user_code("train.collate", self._name):
                return load("train.collate", self._name)(samples)
        try:
            # torch.stack would convert tensors of different types to a common one.
            if is_pair(samples[0]) and len({each[0].dtype for each in samples}) > 1:
                _check_alike(samples, indices)
            return default_collate(samples)
        except (RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
            _check_alike(samples, indices)
            raise UserError(
                f"train.dataset: sample {indices[0]} and those after it make no batch: {error}: "
                "return tensors or numbers, or name a function of your own in train.collate"
            ) from error


def _check_alike(samples: list[Any], indices: Sequence[int]) -> None:
    """Raise UserError with the first sample that differs from the first one."""
    first = _described(samples[0])
    for sample, index in zip(samples, indices, strict=True):
        if (own := _described(sample)) != first:
            raise UserError(
                f"train.dataset returns sample {indices[0]} as {first}, but sample {index} as "
                f"{own}: make them alike, or name a function of your own in train.collate"
            )


def _described(sample: Any) -> str:
    """Return structure, types and shapes of a sample, as text."""

    def leaf(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return f"{value.dtype} {tuple(value.shape)}"
        return type(value).__name__

    return str(pytree.tree_map(leaf, sample)).replace("'", "")
