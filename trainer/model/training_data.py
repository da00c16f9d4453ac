"""Builds the training batches and the held-out samples of this rank."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist

from .. import seeds
from ..data import data_set
from ..data.batches import TrainingLength
from ..data.data_set import is_stream
from ..data.feed import HeldOut, IndexedBatches, TrainBatches, part_of_samples
from ..data.sources import Source, num_classes
from ..data.to_device import create_transform
from ..errors import UserError
from ..process.context import gather
from ..process.run_handle import RankContext
from ..user_code import is_user_code, user_code
from .objectives import DataFacts


@dataclass(frozen=True)
class Data:
    """The training batches and held-out samples of this rank, and their sizes."""

    train_batches: TrainBatches
    held_out: HeldOut | None
    facts: DataFacts
    digest: str | None  # of the content, where the data set states one
    is_of_rank: bool = False  # the data set knows the rank, and may give each other samples

    @property
    def length(self) -> TrainingLength:
        return self.train_batches.length


def build_data(context: RankContext) -> Data:
    """Return the data set of the spec as batches for this world size.

    A user's own data set is built by one rank of each node first: it may download files.
    """
    spec, place = context.train, context.distributed
    is_own = is_user_code(spec.dataset)
    turn = first_on_node(context) if is_own else contextlib.nullcontext()
    # Ranks and attempts must get the same samples where the user's code splits or shuffles them.
    with turn, user_code("train.dataset", spec.dataset):
        seeds.seed_all(seeds.mix(seeds.DATA, spec.seed))
        parts = data_set.create(spec, place.rank, place.world_size)
        classes = num_classes(parts.train, parts.held_out)
    with user_code("train.transform", spec.transform or ""):
        # Again: the data set may draw more where it downloads its files.
        seeds.seed_all(seeds.mix(seeds.DATA, spec.seed, 1))
        transform = create_transform(spec)
    # mypy knows no type "not a stream".
    source = None if is_stream(parts.train) else cast(Source, parts.train)
    digest = getattr(parts.train, "digest", None)
    sizes = {
        "training samples": 0 if source is None else len(source),
        "held-out samples": 0 if parts.held_out is None else len(parts.held_out),
        "classes": classes or 0,
        "digest": int((digest or "0")[:15], 16),
    }
    check_same_data(spec.dataset, sizes, context.device)
    train_batches: TrainBatches
    if source is None:
        make = part_of_samples("stream", spec.dataset)
        train_batches = make(parts.train, parts.is_of_rank, transform, context)
    else:
        train_batches = IndexedBatches(source, transform, context)
    held_out = None if parts.held_out is None else HeldOut(parts.held_out, transform, context)
    stated = (getattr(parts.train, name, None) for name in ("bytes_per_token", "vocab_size"))
    facts = DataFacts(spec, classes, *stated)
    return Data(train_batches, held_out, facts, digest, parts.is_of_rank)


@contextlib.contextmanager
def first_on_node(context: RankContext) -> Iterator[None]:
    """Run the block on local rank 0 of each node, then on the other ranks. All ranks call it."""
    has_others = dist.is_initialized()  # not in the plugin check
    is_first = context.distributed.local_rank == 0
    # Each rank calls one of the two: all pass when the first rank of the slowest node is done.
    if has_others and not is_first:
        dist.barrier()
    yield
    if has_others and is_first:
        dist.barrier()


def check_same_data(dataset: str, sizes: dict[str, int], device: torch.device) -> None:
    """Raise UserError where ranks see different data, such as an incomplete copy on a node.

    All ranks call it, and raise alike: none waits for a rank that has ended.
    """
    rows = gather(torch.tensor(list(sizes.values()), dtype=torch.int64, device=device))
    first = rows[0].tolist()
    for rank, row in enumerate(rows):
        for name, size, own in zip(sizes, first, row.tolist(), strict=True):
            if own != size:
                what = f"train.dataset {dataset} differs between ranks: rank 0 sees {size} {name}"
                raise UserError(f"{what}, rank {rank} {own}: give all nodes the same files")
