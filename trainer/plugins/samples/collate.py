"""Makes one batch of samples: torch's default_collate, or the user's function."""

from collections.abc import Sequence
from typing import Any

from torch.utils.data import default_collate

from ...data.sources import Batch, is_pair
from ...errors import UserError, in_one_line
from ...user_code import load, user_code


def collate(name: str | None, samples: list[Any], indices: Sequence[int]) -> Batch:
    """Return a batch. name: of train.collate. indices: the numbers of the samples, for errors.

    Raises: UserError where samples make no batch.
    """
    if name is not None:
        with user_code("train.collate", name):
            return load("train.collate", name)(samples)
    # torch.stack would convert tensors of different types to a common one.
    types = {each[0].dtype for each in samples if is_pair(each)}
    try:
        if len(types) > 1:
            raise TypeError(f"inputs of types {', '.join(sorted(map(str, types)))}")
        return default_collate(samples)
    except (RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise UserError(
            f"train.dataset: sample {indices[0]} and those after it make no batch: "
            f"{in_one_line(error)}: return tensors or numbers of equal shapes, or name a "
            "function of your own in train.collate"
        ) from error
