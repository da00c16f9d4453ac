"""The batches of this rank, on its device: those to train on, and the held-out ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from trainer.data.batches import BYTE_SCALE, Batch, Batches, BatchSource, Source
from trainer.data.loader import Cut, Loader, Reader, Rows
from trainer.data.sample_rng import SampleRandom
from trainer.data.transforms import Image, Transform
from trainer.dist.run_handle import Job
from trainer.errors import UserError
from trainer.seeds import HELD_OUT, SAMPLE
from trainer.user_code import user_code

# No gradients are kept, so it need not be the training's; fixed, so that results never depend
# on the micro batch.
HELD_OUT_BATCH_SIZE = 256


class Feed:
    """The training batches, transformed; which ones is decided by the step alone."""

    def __init__(
        self, source: Source, transform: Transform | None, batches: Batches, job: Job
    ) -> None:
        self._inputs = _Inputs(source, transform, job, SAMPLE)
        self._batches = batches
        self._rank = job.context.rank
        self._seed = job.train.seed
        self._last_step = job.train.epochs * batches.steps_per_epoch
        self._stream: Iterator[Rows] | None = None
        self._next_step = 0

    def micro_batches(self, step: int) -> Iterator[Batch]:
        """(inputs float32, labels int64) of each micro batch of a global step, on the device.

        Workers read ahead, so steps that follow each other are quick; any other begins anew.
        """
        if self._stream is None or step != self._next_step:
            self.close()
            steps = range(step, self._last_step)
            plan = TrainingPlan(self._batches, self._rank, steps, self._inputs.home)
            self._stream = iter(self._inputs.rows(plan))
        self._next_step = step + 1
        for _ in range(self._batches.num_micro_batches(step)):
            rows = next(self._stream)
            yield self._inputs.finished(rows, (self._seed, step))

    def example(self, n: int) -> Batch:
        """What `n` samples look like, without chance: the first sample, n times.

        The transform is tried with chance, too, so that its mistakes show before the model's.
        """
        self._inputs.finished(self._inputs.first(n), (self._seed, 0))
        return self._inputs.finished(self._inputs.first(n), None)

    def close(self) -> None:
        """End the workers."""
        self._stream = None
        self._inputs.close()


class HeldOut:
    """The held-out samples: each belongs to one rank, whatever the world size."""

    def __init__(self, source: Source, transform: Transform | None, job: Job) -> None:
        self._inputs = _Inputs(source, transform, job, HELD_OUT)
        self._num_samples = len(source)
        self.device = job.device
        context = job.context
        every = torch.arange(len(source), device=self._inputs.home)
        own = every[context.rank :: context.world_size]
        cuts = torch.split(own, HELD_OUT_BATCH_SIZE) if len(own) else ()
        self._plan = [Cut(0, indices) for indices in cuts]
        self._rows: Iterable[Rows] | None = None

    def __len__(self) -> int:
        """The samples of all ranks together."""
        return self._num_samples

    def batches(self) -> Iterator[Batch]:
        """(inputs float32, labels int64) of this rank's samples, on the device."""
        if self._rows is None:
            self._rows = self._inputs.rows(self._plan)
        for rows in self._rows:
            yield self._inputs.finished(rows, None)

    def close(self) -> None:
        """End the workers."""
        self._rows = None
        self._inputs.close()


class TrainingPlan:
    """The cuts of one rank from a step to the end of the run, made as they are asked for."""

    def __init__(self, batches: Batches, rank: int, steps: range, home: torch.device) -> None:
        self._batches = batches
        self._rank = rank
        self._steps = steps
        self._home = home

    def __iter__(self) -> Iterator[Cut]:
        steps_per_epoch = self._batches.steps_per_epoch
        epoch, order = -1, torch.empty(0)
        for step in self._steps:
            if step // steps_per_epoch != epoch:
                epoch = step // steps_per_epoch
                order = _moved(self._batches.order(epoch), self._home)
            for indices in self._batches.micro_batches(order, step, self._rank):
                yield Cut(step, indices)


class _Inputs:
    """One part of a data set, as it comes to the device.

    home: where the indices of its samples belong.
    """

    def __init__(
        self, source: Source, transform: Transform | None, job: Job, seed_kind: int
    ) -> None:
        self._device = job.device
        self._transform = transform
        self._dataset = job.train.dataset
        self._transform_name = job.train.transform or ""
        self._is_channels_last = job.train.channels_last
        self._num_workers = job.run.spec.launch.workers_per_rank
        self._reader: Reader | None = None
        self._loader: Loader | None = None
        self._source: BatchSource | None = None
        if isinstance(source, BatchSource):
            self.home = job.device
            self._source = source.to(job.device)
            if self._num_workers > 0 and seed_kind == SAMPLE:
                job.context.say(
                    f"launch.workers_per_rank is not used: {job.train.dataset} is indexed by whole "
                    "batches on the device"
                )
        else:
            self.home = torch.device("cpu")
            self._reader = Reader(source, job.train.dataset, seed_kind, job.train.seed)

    def rows(self, plan: Iterable[Cut]) -> Iterable[Rows]:
        """The samples of a plan, read by workers where there are any, until `close`."""
        if self._source is not None:
            return _InMemory(self._source, plan)
        assert self._reader is not None
        self._loader = Loader(self._reader, plan, self._num_workers, self._device.type == "cuda")
        return self._loader

    def close(self) -> None:
        """End the workers."""
        if self._loader is not None:
            self._loader.close()

    def finished(self, rows: Rows, chance: tuple[int, int] | None) -> Batch:
        """(inputs, labels) on the device as the model takes them; `chance` is (seed, step)."""
        inputs = _moved(rows.inputs, self._device)
        if inputs.dtype == torch.uint8 and not isinstance(self._transform, Image):
            inputs = inputs.float().mul_(BYTE_SCALE)
        if self._transform is not None:
            indices = _moved(rows.indices, self._device)
            random = SampleRandom(*chance, indices) if chance is not None else None
            inputs = self._transformed(self._transform, inputs, random)
        if self._is_channels_last and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return inputs, _moved(rows.labels, self._device)

    def _transformed(
        self, transform: Transform, inputs: torch.Tensor, random: SampleRandom | None
    ) -> torch.Tensor:
        where, n = f"train.transform {self._transform_name}", len(inputs)
        with user_code("train.transform", self._transform_name):
            inputs = transform(inputs, random)
        _check_inputs(where, inputs, n)
        if inputs.device.type != self._device.type:
            raise UserError(
                f"{where} gives inputs on the {inputs.device.type}, but this rank is on the "
                f"{self._device.type}: leave them on the device where they are"
            )
        return inputs

    def first(self, n: int) -> Rows:
        """The first sample, `n` times."""
        indices = torch.zeros(1, dtype=torch.int64, device=self.home)
        with user_code("train.dataset", self._dataset):
            if self._source is not None:
                inputs, labels, _ = _batch(self._source, indices)
            else:
                assert self._reader is not None
                inputs, labels, _ = self._reader.read(0, [0])
        inputs = inputs.expand(n, *inputs.shape[1:]).contiguous()
        return Rows(inputs, labels.repeat(n), indices.repeat(n))


class _InMemory:
    """The samples of a plan out of a batch source: nothing to read ahead."""

    def __init__(self, source: BatchSource, plan: Iterable[Cut]) -> None:
        self._source = source
        self._plan = plan

    def __iter__(self) -> Iterator[Rows]:
        for _, indices in self._plan:
            yield _batch(self._source, indices)


def _batch(source: BatchSource, indices: torch.Tensor) -> Rows:
    """The samples with these indices, labels of whatever integers as int64."""
    inputs, labels = source.batch(indices)
    _check_inputs("train.dataset", inputs, len(indices))
    if labels.shape != indices.shape or labels.is_floating_point():
        raise UserError(
            f"train.dataset gives labels {labels.dtype} {tuple(labels.shape)} for {len(indices)} "
            f"samples: make them int64 ({len(indices)},)"
        )
    return Rows(inputs, labels.long(), indices)


def _check_inputs(where: str, inputs: object, n: int) -> None:
    """Refuse what is no batch of `n` inputs; `where` names what gives it."""
    if not isinstance(inputs, torch.Tensor):
        raise UserError(f"{where} gives a {type(inputs).__name__}, not a tensor of {n} inputs")
    num_inputs = len(inputs) if inputs.ndim else 0
    if num_inputs != n:
        raise UserError(f"{where} gives {num_inputs} inputs for {n} samples: give one for each")
    if inputs.dtype == torch.float64:
        raise UserError(f"{where} gives inputs as torch.float64: make them float32")


def _moved(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The same values on a device; towards a GPU without a wait."""
    if device.type == "cuda" and values.device.type == "cpu":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)
