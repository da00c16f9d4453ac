"""Makes one batch of samples: torch's default_collate, or the user's function."""

from collections.abc import Sequence
from typing import Any

from torch.utils.data import default_collate

from ...data.sources import Batch, is_pair
from ...errors import UserError, in_one_line
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

        Raises: UserError where samples make no batch.
        """
        if self._name is not None:
            with user_code("train.collate", self._name):
                return load("train.collate", self._name)(samples)
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
