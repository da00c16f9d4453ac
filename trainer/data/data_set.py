"""Creates the data set of a spec."""

import inspect
from typing import NamedTuple, TypeGuard

from torch.utils.data import IterableDataset

from ..contract import Train
from ..errors import NoSamples, UserError
from ..parts import parts
from ..user_code import call, load
from .sources import BatchSource, PerSampleSet, Source, Stream
from .tables import breast_cancer, digits

BUILT_IN = {"digits": digits, "breast_cancer": breast_cancer}


class Parts(NamedTuple):
    """What train.dataset returned."""

    train: Source | Stream
    held_out: Source | None
    is_of_rank: bool = False  # it got the rank, so a stream is of this rank only


def create(spec: Train, rank: int, world_size: int) -> Parts:
    """Return the parts of `train.dataset`.

    It names the part of a plugin, or a `package.module:callable`, which returns (train, held-out);
    held-out may be None. A callable with the parameters `rank` and `world_size` gets them.
    Raises UserError where it returns something else, or a part without samples.
    """
    name = spec.dataset
    function = load("train.dataset", name, {**BUILT_IN, **parts("dataset")})
    takes_rank = {"rank", "world_size"} <= inspect.signature(function).parameters.keys()
    place = {"rank": rank, "world_size": world_size} if takes_rank else {}
    made = call("train.dataset", function, {**spec.dataset_args, **place})
    if not isinstance(made, (tuple, list)) or len(made) != 2:
        what = f"train.dataset: {name} returns a {type(made).__name__}"
        raise UserError(f"{what}, not a pair (train, test)")
    train, held_out = made
    if not is_stream(train):
        _check_part(name, "train", train)
    if held_out is not None:
        _check_part(name, "held-out", held_out)
    return Parts(train, held_out, takes_rank)


def is_stream(part: object) -> TypeGuard[Stream]:
    """Return whether a part can only be iterated over."""
    is_indexed = isinstance(part, (BatchSource, PerSampleSet))
    # torch's IterableDataset has a __getitem__, from Dataset, that raises.
    return isinstance(part, IterableDataset) or (hasattr(part, "__iter__") and not is_indexed)


def _check_part(name: str, title: str, part: object) -> None:
    """Raise UserError unless a part is a data set with samples."""
    if not isinstance(part, (BatchSource, PerSampleSet)):
        what = f"train.dataset: {name} returns a {type(part).__name__} as its {title} part: it "
        what += "needs __len__, and either batch and to, or __getitem__; only the train part may "
        raise UserError(f"{what}be a stream, with state_dict and load_state_dict")
    if len(part) == 0:
        raise NoSamples(f"train.dataset: {name} returns a {title} part without samples")
