"""The batches of this rank on its device: training batches and held-out batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from trainer.data.batches import Batches
from trainer.data.loader import BatchIndices, Loader, RawBatch, Reader
from trainer.data.sample_rng import SampleRandom
from trainer.data.sources import BYTE_SCALE, Batch, BatchSource, Source
from trainer.data.transforms import Image, Transform
from trainer.dist.run_handle import RankContext
from trainer.errors import UserError
from trainer.seeds import HELD_OUT, SAMPLE
from trainer.user_code import user_code

# Evaluation keeps no gradients, so its batches need not be the training's. The size is fixed, so
# that evaluation results do not depend on train.micro_batch_size.
HELD_OUT_BATCH_SIZE = 256


class TrainBatches:
    """The transformed training batches of this rank; the step alone decides their samples."""

    def __init__(
        self, source: Source, transform: Transform | None, batches: Batches, context: RankContext
    ) -> None:
        self._inputs = _Inputs(source, transform, context, SAMPLE)
        self._batches = batches
        self._rank = context.distributed.rank
        self._seed = context.train.seed
        self._last_step = context.train.epochs * batches.steps_per_epoch
        self._stream: Iterator[RawBatch] | None = None
        self._next_step = 0

    def micro_batches(self, step: int) -> Iterator[Batch]:
        """Yield (inputs float32 [n, ...], labels int64 [n]) of each micro batch of a global step.

        Both are on the device. Worker processes read ahead, so consecutive steps are quick. Any
        other step restarts the workers at that step.
        """
        if self._stream is None or step != self._next_step:
            self.close()
            steps = range(step, self._last_step)
            schedule = BatchSchedule(self._batches, self._rank, steps, self._inputs.index_device)
            self._stream = iter(self._inputs.read(schedule))
        self._next_step = step + 1
        for _ in range(self._batches.num_micro_batches(step)):
            batch = next(self._stream)
            yield self._inputs.to_device(batch, (self._seed, step))

    def example(self, n: int) -> Batch:
        """Return `n` copies of the first sample, transformed as in evaluation.

        The transform also runs once as in training, so that its errors appear before the model's.
        """
        self._inputs.to_device(self._inputs.first(n), (self._seed, 0))
        return self._inputs.to_device(self._inputs.first(n), None)

    def close(self) -> None:
        """End the worker processes."""
        self._stream = None
        self._inputs.close()


class HeldOut:
    """The held-out samples; each belongs to exactly one rank, at any world size."""

    def __init__(self, source: Source, transform: Transform | None, context: RankContext) -> None:
        self._inputs = _Inputs(source, transform, context, HELD_OUT)
        self._num_samples = len(source)
        self.device = context.device
        all_indices = torch.arange(len(source), device=self._inputs.index_device)
        own = all_indices[context.distributed.rank :: context.distributed.world_size]
        parts = torch.split(own, HELD_OUT_BATCH_SIZE) if len(own) else ()
        self._schedule = [BatchIndices(0, indices) for indices in parts]
        self._batches: Iterable[RawBatch] | None = None

    def __len__(self) -> int:
        """Return the number of held-out samples of all ranks together."""
        return self._num_samples

    def batches(self) -> Iterator[Batch]:
        """Yield (inputs float32 [n, ...], labels int64 [n]) of this rank's samples, on the device.

        The worker processes stay alive between two calls.
        """
        if self._batches is None:
            self._batches = self._inputs.read(self._schedule)
        for batch in self._batches:
            yield self._inputs.to_device(batch, None)

    def close(self) -> None:
        """End the worker processes."""
        self._batches = None
        self._inputs.close()


class BatchSchedule:
    """The sample indices of one rank's micro batches in `steps`, computed when iterated over."""

    def __init__(
        self, batches: Batches, rank: int, steps: range, index_device: torch.device
    ) -> None:
        self._batches = batches
        self._rank = rank
        self._steps = steps
        self._index_device = index_device

    def __iter__(self) -> Iterator[BatchIndices]:
        steps_per_epoch = self._batches.steps_per_epoch
        epoch, order = -1, torch.empty(0)
        for step in self._steps:
            if step // steps_per_epoch != epoch:
                epoch = step // steps_per_epoch
                order = _on_device(self._batches.order(epoch), self._index_device)
            for indices in self._batches.micro_batches(order, step, self._rank):
                yield BatchIndices(step, indices)


class _Inputs:
    """One part of a data set: reads batches, transforms them, moves them to the device.

    index_device: where the source expects sample indices. The GPU for a BatchSource on a GPU,
    else the CPU.
    """

    def __init__(
        self, source: Source, transform: Transform | None, context: RankContext, seed_kind: int
    ) -> None:
        self._device = context.device
        self._transform = transform
        self._dataset = context.train.dataset
        self._transform_name = context.train.transform or ""
        self._is_channels_last = context.train.channels_last
        self._num_workers = context.run.spec.launch.num_workers
        self._reader: Reader | None = None
        self._loader: Loader | None = None
        self._source: BatchSource | None = None
        if isinstance(source, BatchSource):
            self.index_device = context.device
            self._source = source.to(context.device)
            if self._num_workers > 0 and seed_kind == SAMPLE:
                context.distributed.log(
                    f"launch.num_workers is not used: {context.train.dataset} is indexed by whole "
                    "batches on the device"
                )
        else:
            self.index_device = torch.device("cpu")
            self._reader = Reader(source, context.train.dataset, seed_kind, context.train.seed)

    def read(self, schedule: Iterable[BatchIndices]) -> Iterable[RawBatch]:
        """Return the batches of a schedule; worker processes, if any, read them until `close`."""
        if self._source is not None:
            return _InMemory(self._source, schedule)
        assert self._reader is not None
        pin_memory = self._device.type == "cuda"
        self._loader = Loader(self._reader, schedule, self._num_workers, pin_memory)
        return self._loader

    def close(self) -> None:
        """End the worker processes."""
        if self._loader is not None:
            self._loader.close()

    def to_device(self, batch: RawBatch, rng_key: tuple[int, int] | None) -> Batch:
        """Return (inputs float32 [n, ...], labels int64 [n]) on the device, as the model gets them.

        rng_key: (seed, step) of the transform's random numbers; None in evaluation.
        """
        inputs = _on_device(batch.inputs, self._device)
        if inputs.dtype == torch.uint8 and not isinstance(self._transform, Image):
            inputs = inputs.float().mul_(BYTE_SCALE)
        if self._transform is not None:
            indices = _on_device(batch.indices, self._device)
            random = SampleRandom(*rng_key, indices) if rng_key is not None else None
            inputs = self._transformed(self._transform, inputs, random)
        if self._is_channels_last and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return inputs, _on_device(batch.labels, self._device)

    def _transformed(
        self, transform: Transform, inputs: torch.Tensor, random: SampleRandom | None
    ) -> torch.Tensor:
        where, n = f"train.transform {self._transform_name}", len(inputs)
        with user_code("train.transform", self._transform_name):
            inputs = transform(inputs, random)
        _check_inputs(where, inputs, n)
        if inputs.device.type != self._device.type:
            raise UserError(
                f"{where} returns inputs on the {inputs.device.type}, but this rank is on the "
                f"{self._device.type}: leave them on the device that they were on"
            )
        return inputs

    def first(self, n: int) -> RawBatch:
        """Return `n` copies of the first sample, not transformed."""
        indices = torch.zeros(1, dtype=torch.int64, device=self.index_device)
        with user_code("train.dataset", self._dataset):
            if self._source is not None:
                inputs, labels, _ = _batch(self._source, indices)
            else:
                assert self._reader is not None
                inputs, labels, _ = self._reader.read(0, [0])
        inputs = inputs.expand(n, *inputs.shape[1:]).contiguous()
        return RawBatch(inputs, labels.repeat(n), indices.repeat(n))


class _InMemory:
    """The batches of a schedule from a BatchSource, without workers and without reading ahead."""

    def __init__(self, source: BatchSource, schedule: Iterable[BatchIndices]) -> None:
        self._source = source
        self._schedule = schedule

    def __iter__(self) -> Iterator[RawBatch]:
        for _, indices in self._schedule:
            yield _batch(self._source, indices)


def _batch(source: BatchSource, indices: torch.Tensor) -> RawBatch:
    """Return the samples `indices`, int64 [n], with labels of any integer type as int64 [n]."""
    inputs, labels = source.batch(indices)
    _check_inputs("train.dataset", inputs, len(indices))
    if labels.shape != indices.shape or labels.is_floating_point():
        raise UserError(
            f"train.dataset returns labels {labels.dtype} {tuple(labels.shape)} for {len(indices)} "
            f"samples: make them int64 ({len(indices)},)"
        )
    return RawBatch(inputs, labels.long(), indices)


def _check_inputs(where: str, inputs: object, n: int) -> None:
    """Raise UserError unless `inputs` is a batch of `n` inputs. where: the key that returned it."""
    if not isinstance(inputs, torch.Tensor):
        raise UserError(f"{where} returns a {type(inputs).__name__}, not a tensor of {n} inputs")
    num_inputs = len(inputs) if inputs.ndim else 0
    if num_inputs != n:
        raise UserError(f"{where} returns {num_inputs} inputs for {n} samples: return one for each")
    if inputs.dtype == torch.float64:
        raise UserError(f"{where} returns inputs as torch.float64: make them float32")


def _on_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the same values on a device; the host does not wait for a copy to a GPU."""
    if device.type == "cuda" and values.device.type == "cpu":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)
