"""Batches of a stream, which are resumed exactly after the samples that were trained on."""

import contextlib
import copy
import math
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from ....jobs.contract.batch_sizes import uneven
from ...contract import BatchSizes, Train
from ...data.batches import TrainingLength
from ...data.feed import TrainBatches
from ...data.sources import Batch, RawBatch, Stream, check_plain, content_sha256
from ...data.to_device import Transform
from ...errors import CodeError, UserError
from ...process.run_handle import RankContext
from ...seeds import SAMPLE, mix, seed_all
from ...user_code import user_code, with_key
from .by_sample import as_in_worker
from .collate import collate

ONE_STREAM = "have train.dataset return one stream, without the arguments rank and world_size"


@dataclass(frozen=True)
class Position:
    """How far a stream is read. A new iterator of the stream continues from here.

    num_samples: read since the beginning of the training.
    num_passes: finished passes; a stream that ends begins again.
    stream: the stream's own `state_dict()`.
    """

    num_samples: int
    num_passes: int
    stream: dict[str, Any]


@dataclass(frozen=True)
class Share:
    """Which samples of a stream are this rank's.

    is_own_stream: the data set gave each rank a stream of its own. Otherwise all ranks read the
        same stream, and of each `world_size` samples of a round every rank takes one.
    """

    rank: int
    world_size: int
    is_own_stream: bool

    def round_size(self, count: int, sizes: BatchSizes) -> int:
        """Return the samples of the round that begins after `count` samples of the stream."""
        if self.is_own_stream:
            return sizes.micro_batch_size
        place = count % sizes.global_batch_size
        number = math.ceil(place * sizes.grad_accum_steps / sizes.global_batch_size)
        return sizes.round_of(number).stop - place

    def has(self, place: int) -> bool:
        """Return whether the sample at a place of its round, from 0, is this rank's."""
        return self.is_own_stream or place % self.world_size == self.rank

    def number(self, count: int) -> int:
        """Return a number that no other sample of any rank has."""
        return count * self.world_size + self.rank if self.is_own_stream else count


class _Reading(NamedTuple):
    """A batch that was read ahead, and the position after it."""

    batch: RawBatch
    after: Position


@dataclass
class StreamReader(IterableDataset[Any]):
    """Reads a stream from a position on, by batches; returns errors as values, as `Reader` does."""

    stream: Stream | Iterable[Any]
    train: Train
    share: Share
    sizes: BatchSizes
    start: dict[str, Any]  # the stream's `state_dict()` before its first sample
    position: Position

    def __iter__(self) -> Generator[_Reading | UserError | CodeError]:
        try:
            yield from self.readings()
        except (UserError, CodeError) as error:
            yield error
        except Exception as error:
            yield with_key(error, "train.dataset", self.train.dataset)

    def first(self) -> _Reading:
        """Return the next batch, and leave the position as it is."""
        with contextlib.closing(self.readings()) as readings:
            return next(readings)

    def readings(self) -> Generator[_Reading]:
        """Yield the batches from the position on; errors of the stream pass through."""
        samples = self._samples(self.position)
        count = self.position.num_samples
        while True:
            with contextlib.nullcontext() if get_worker_info() else as_in_worker():
                own = []
                for place in range(self.share.round_size(count, self.sizes)):
                    value, num_passes = next(samples)
                    if self.share.has(place):
                        own.append((self.share.number(count + place), value))
                # In one of `idle_rounds` it is another rank's, which the loop does not count.
                numbers, values = zip(*own or [(count + place, value)], strict=True)
                content = collate(self.train.collate, [*values], [*numbers])
            count += place + 1
            state: dict[str, Any] = {}
            if isinstance(self.stream, Stream):
                state = copy.deepcopy(self.stream.state_dict())
                what = f"train.dataset {self.train.dataset}: state_dict() of the stream"
                check_plain(what, state)  # else no checkpoint can hold it
            after = Position(count, num_passes, state)
            yield _Reading(RawBatch(content, torch.tensor(numbers)), after)

    def _samples(self, position: Position) -> Iterator[tuple[Any, int]]:
        """Yield the samples of all passes after a position, each with the finished passes.

        The generators are seeded for each.
        """
        count, passes, state = position.num_samples, position.num_passes, position.stream
        while True:
            began = count
            self._seed(count)  # `iter` may draw from the generators, too
            if hasattr(self.stream, "set_epoch"):  # before the state, which may depend on it
                self.stream.set_epoch(passes)
            if isinstance(self.stream, Stream):
                self.stream.load_state_dict(state)
            iterator = iter(self.stream)
            while True:
                self._seed(count)
                try:
                    value = next(iterator)
                except StopIteration:
                    break
                yield value, passes
                count += 1
            if count == began and state is self.start:
                raise UserError(f"train.dataset {self.train.dataset}: the stream has no samples")
            passes, state = passes + 1, self.start

    def _seed(self, count: int) -> None:
        seed_all(mix(SAMPLE, self.train.seed, self.share.number(count)))


class StreamBatches(TrainBatches):
    """The transformed training batches of this rank, in the order of its stream.

    At most one worker process reads ahead, so the order does not depend on launch.num_workers. The
    position counts what was trained on, not what was read ahead. A stream goes on with the same
    samples after a resume if it has state_dict and load_state_dict, and `restore` reads the last
    batch again as it was.
    """

    inexact = (
        "the stream has no state_dict, or one that lacks a part of its position, as with a shuffle "
        "buffer: a resume repeats or skips samples, and its exactness is `approximate`"
    )
    resumed = "the stream of train.dataset went on with other samples after step {}"

    def __init__(
        self,
        stream: Stream | Iterable[Any],
        is_own_stream: bool,
        transform: Transform | None,
        context: RankContext,
    ) -> None:
        """is_own_stream: see `Share`."""
        train, place = context.train, context.distributed
        share = Share(place.rank, place.world_size, is_own_stream)
        if train.max_steps is None:
            what = f"train.dataset {train.dataset} returns a stream, whose length is not known"
            raise UserError(f"{what}: set train.max_steps")
        sizes = BatchSizes.for_ranks(train, place.world_size, is_even_at_any_cost=is_own_stream)
        steps, size = train.max_steps, sizes.global_batch_size
        length = TrainingLength(steps, steps, 1, size, steps * size)  # one epoch
        super().__init__(sizes, length, transform, context)
        self._share = share
        self._is_ahead = context.run.spec.launch.num_workers > 0
        if share.is_own_stream and not self.sizes.is_even:
            what, way_out = uneven(self.sizes.global_batch_size, share.world_size)
            what = f"train.global_batch_size {what}, each of which has a stream of its own"
            raise UserError(f"{what}: {way_out}, or {ONE_STREAM}")
        self.resumes_exactly = isinstance(stream, Stream)
        start = copy.deepcopy(stream.state_dict()) if isinstance(stream, Stream) else {}
        position = Position(0, 0, start)
        self._reader = StreamReader(stream, self._train, share, self.sizes, start, position)
        self._last: tuple[Position, _Reading] | None = None  # the position before it
        self._batches: Iterator[Any] | None = None

    def micro_batches(self, step: int) -> Iterator[Batch]:
        """Yield the next micro batches, on the device."""
        for _ in range(self.sizes.grad_accum_steps):
            reading = self._next()
            self._last = self._reader.position, reading
            self._reader.position = reading.after
            yield self.to_device(reading.batch, (self._train.seed, step))

    def example(self) -> Batch:
        """Return the first batch of the stream; the training still begins with that batch."""
        with user_code("train.dataset", self._train.dataset):
            reading = self._reader.first()
        self.to_device(reading.batch, (self._train.seed, 0))
        return self.to_device(reading.batch, None)

    def positions(self) -> list[dict[str, Any]]:
        """Return the position after the last batch that was trained on, as plain values.

        Where each rank has a stream of its own, all ranks call it, and it returns one for each.
        """
        own = dict(vars(self._reader.position))
        if self._last is not None:
            before, reading = self._last
            own["last"] = {
                "before": dict(vars(before)),
                "sha256": content_sha256(reading.batch.content),
                "made_of": self._made_of(),
            }
        if not self._share.is_own_stream:
            return [own]
        positions: list[dict[str, Any]] = [{} for _ in range(self._share.world_size)]
        dist.all_gather_object(positions, own)
        return positions

    def restore(self, positions: list[dict[str, Any]]) -> None:
        """Continue after the positions of a save. Raises: UserError for another number of ranks."""
        num_saved, share = len(positions), self._share
        if share.is_own_stream and num_saved != share.world_size:
            raise UserError(
                f"the checkpoint has the positions of {num_saved} streams, this start has "
                f"{share.world_size} ranks: continue with {num_saved} ranks, or {ONE_STREAM}"
            )
        self.close()
        own = dict(positions[share.rank if share.is_own_stream else 0])
        last = own.pop("last", None)
        self._reader.position = Position(**own)
        has_digest = share.is_own_stream or share.rank == 0  # of a shared stream that of rank 0
        if last is not None and last["made_of"] == self._made_of() and has_digest:
            with user_code("train.dataset", self._train.dataset):
                again = replace(self._reader, position=Position(**last["before"])).first()
            self.resumes_exactly &= content_sha256(again.batch.content) == last["sha256"]

    def _made_of(self) -> list[int]:
        """Return on what the samples of a batch depend, besides the position."""
        return [self._share.world_size, self.sizes.micro_batch_size]

    def _next(self) -> _Reading:
        if self._batches is None:
            reader: Iterable[Any] = self._reader
            if self._is_ahead:
                from .processes import WorkerLoader  # as in by_sample

                reader = WorkerLoader(self._reader, 1, batch_size=None)
            self._batches = iter(reader)
        reading = next(self._batches)
        if isinstance(reading, Exception):
            raise reading
        assert isinstance(reading, _Reading)
        return reading

    def close(self) -> None:
        self._batches = None
