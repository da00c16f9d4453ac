"""Builds the training batches and the held-out samples of this rank."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import cast

import torch

from .. import seeds
from ..data import builtin, transforms
from ..data.batches import Batches, TrainingLength
from ..data.feed import HeldOut, TrainBatches
from ..data.sources import Source, Stream, num_classes
from ..data.stream import Share, StreamBatches
from ..data.transforms import Transform
from ..errors import UserError
from ..process.context import gather
from ..process.run_handle import RankContext
from ..process.turns import first_on_node
from ..user_code import user_code
from .objectives import DataFacts

INEXACT_STREAM = (
    "the stream has no state_dict and load_state_dict, or reads other samples after its state is "
    "loaded, as with a shuffle buffer that state_dict() lacks: a resume repeats or skips samples. "
    "The exactness of a run that was resumed is then `approximate`"
)

INEXACT_DATA = (
    "a sample has other values when it is read again: the data set or train.transform draws from a "
    "generator of its own, whose state no checkpoint has. The exactness of a run that was resumed "
    "is then `approximate`"
)


@dataclass(frozen=True)
class Data:
    """The training batches and held-out samples of this rank, and their sizes.

    held_out: None where the data set has no such part.
    samples_per_epoch: 0 for a stream, whose length is not known.
    digest: of the content, where the data set states one.
    """

    train_batches: TrainBatches | StreamBatches
    held_out: HeldOut | None
    length: TrainingLength
    samples_per_epoch: int
    facts: DataFacts
    vocab_size: int | None
    digest: str | None


def build_data(context: RankContext) -> Data:
    """Return the data set of the spec as batches for this world size.

    A user's own data set is built by one rank of each node first: it may download files.
    """
    spec, place = context.train, context.distributed
    is_own = spec.dataset not in builtin.BUILT_IN
    turn = first_on_node(context) if is_own else contextlib.nullcontext()
    # Ranks and attempts must get the same samples where the user's code splits or shuffles them.
    with turn, user_code("train.dataset", spec.dataset):
        seeds.seed_all(seeds.mix(seeds.DATA, spec.seed))
        parts = builtin.create(spec.dataset, spec.dataset_args, place.rank, place.world_size)
        classes = num_classes(parts.train, parts.held_out)
    with user_code("train.transform", spec.transform or ""):
        # Again: the data set may draw more where it downloads its files.
        seeds.seed_all(seeds.mix(seeds.DATA, spec.seed, 1))
        transform = transforms.create(spec.transform, spec.transform_args)
    num_held_out = 0 if parts.held_out is None else len(parts.held_out)
    digest = getattr(parts.train, "digest", None)
    sizes = {"held-out samples": num_held_out, "classes": classes or 0}
    if digest is not None:
        sizes["digest"] = int(digest[:15], 16)
    train_batches, length, samples_per_epoch = _batches(context, parts, transform, sizes)
    held_out = None
    if parts.held_out is not None:
        held_out = HeldOut(parts.held_out, transform, context)
    bytes_per_token = getattr(parts.train, "bytes_per_token", None)
    facts = DataFacts(spec.dataset, classes, bytes_per_token, spec.model)
    vocab_size = getattr(parts.train, "vocab_size", None)
    return Data(train_batches, held_out, length, samples_per_epoch, facts, vocab_size, digest)


def _batches(
    context: RankContext, parts: builtin.Parts, transform: Transform | None, sizes: dict[str, int]
) -> tuple[TrainBatches | StreamBatches, TrainingLength, int]:
    """Return training batches, length and samples per epoch; log them.

    sizes: what all ranks must see alike, besides the training samples.
    """
    spec, place = context.train, context.distributed
    held_out = f"{sizes['held-out samples']} held out"
    train: Source | Stream = parts.train
    if builtin.is_stream(train):
        check_same_data(spec.dataset, sizes, context.device)
        if spec.max_steps is None:
            raise UserError(
                f"train.dataset {spec.dataset} returns a stream, whose length is not known: set "
                "train.max_steps"
            )
        share = Share(place.rank, place.world_size, parts.is_own_stream)
        stream = StreamBatches(train, share, transform, context)
        samples = stream.sizes.global_batch_size
        place.log(f"{spec.dataset}: a stream, {held_out}; {samples} samples a step")
        return stream, TrainingLength.of_stream(spec.max_steps, samples), 0
    train = cast(Source, train)  # mypy knows no type "not a stream"
    num_samples = len(train)
    sizes = {"training samples": num_samples, **sizes}
    check_same_data(spec.dataset, sizes, context.device)
    batches = Batches.of(spec, num_samples, place.world_size)
    place.log(f"{spec.dataset}: {num_samples} training samples, {held_out}; {batches.describe()}")
    length = TrainingLength.of(spec, batches)
    train_batches = TrainBatches(train, transform, batches, length, context)
    return train_batches, length, batches.samples_per_epoch


def resumes_exactly(batches: TrainBatches | StreamBatches, context: RankContext) -> bool:
    """Return whether the samples of all ranks go on after a resume as without one.

    All ranks call it, after `example` and `restore`.
    """
    own = torch.tensor(int(batches.resumes_exactly), device=context.device)
    return all(bool(each) for each in gather(own))


def inexactness(batches: TrainBatches | StreamBatches) -> str:
    """Return why the samples of these batches do not go on after a resume as without one."""
    return INEXACT_DATA if isinstance(batches, TrainBatches) else INEXACT_STREAM


def check_same_data(dataset: str, sizes: dict[str, int], device: torch.device) -> None:
    """Raise UserError where ranks see different data, such as an incomplete copy on a node.

    sizes: this rank's numbers by name; the names and their order are the same on all ranks.
    """
    rows = gather(torch.tensor(list(sizes.values()), dtype=torch.int64, device=device))
    first = rows[0].tolist()
    for rank, row in enumerate(rows):
        for name, size, own in zip(sizes, first, row.tolist(), strict=True):
            if own != size:
                raise UserError(
                    f"train.dataset {dataset} differs between ranks: rank 0 sees {size} {name}, "
                    f"rank {rank} {own}: give all nodes the same files"
                )
