"""The kinds of data sets: whole batches on the device, single samples on the CPU, and streams."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from ..errors import UserError

Batch = Any  # what the objective gets: a tensor, a pair, a dict or nested containers of tensors
BYTE_SCALE = 1 / 255  # uint8 inputs times this are float32 from 0 to 1
PLAIN = (str, int, float, bool, type(None))  # what a checkpoint holds besides tensors


class RawBatch(NamedTuple):
    """One batch before the transform, on the CPU or where its BatchSource is.

    indices: int64 [n], of the samples in their data set.
    """

    content: Batch
    indices: torch.Tensor


@runtime_checkable
class BatchSource(Protocol):
    """A data set that is indexed by whole batches, on the device."""

    def __len__(self) -> int: ...

    def to(self, device: torch.device) -> BatchSource:
        """Return the same samples on a device."""

    def batch(self, indices: torch.Tensor) -> Batch:
        """Return the samples `indices`, int64 [n], as a batch.

        The indices are on the device of `to`, or on the CPU where the source has an attribute
        `is_on_cpu` that is true. uint8 inputs of a pair (inputs, targets) are later scaled by
        BYTE_SCALE.
        """


@runtime_checkable
class PerSampleSet(Protocol):
    """A data set that is read by sample, on the CPU; by launch.num_workers processes, if any.

    torch's default_collate makes a batch of its samples, or the function of train.collate.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any:
        """Return a sample: tensors and numbers, alone or in tuples and dicts."""


@runtime_checkable
class Stream(Protocol):
    """Samples in an order of their own, whose position can be saved.

    `state_dict()` is the position after the sample that the iterator has returned last. After
    `load_state_dict(state)` a new iterator begins with the sample after it. The protocol is that of
    torchdata's StatefulDataLoader and of IterableDataset of the package datasets.
    """

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


Source = BatchSource | PerSampleSet


@dataclass(frozen=True)
class Samples:
    """A data set in memory. A dataset callable may return two of them: (train, test).

    inputs: uint8 or float32 [N, ...]; the model gets them as float32 times `scale`.
    labels: classes, int64 [N] or another integer type, from 0 to num_classes - 1; or floating-point
        targets [N, ...] of a regression.
    num_classes: 0 stands for the highest label plus 1; None for floating-point targets.
    Raises UserError where inputs and labels do not fit together.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    scale: float = 1.0
    num_classes: int | None = 0

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            what = f"train.dataset returns {len(self.inputs)} inputs, but {len(self.labels)} labels"
            raise UserError(what)
        if self.labels.is_floating_point():
            object.__setattr__(self, "num_classes", None)
            return
        object.__setattr__(self, "labels", self.labels.long())
        if len(self.labels) == 0:
            return
        lowest, highest = int(self.labels.min()), int(self.labels.max())
        num_classes = self.num_classes or highest + 1
        object.__setattr__(self, "num_classes", num_classes)
        check_labels(lowest, highest, num_classes)

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> Samples:
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))

    def batch(self, indices: torch.Tensor) -> Batch:
        """Return (inputs [n, ...], labels [n, ...]) of the samples `indices`, int64 [n]."""
        inputs = self.inputs.index_select(0, indices)
        # Bytes that only need BYTE_SCALE stay bytes, which are cheaper to move. They become
        # float32 last, in trainer.data.to_device or in the transform.
        if inputs.dtype != torch.uint8 or self.scale != BYTE_SCALE:
            inputs = inputs.float()
            if self.scale != 1.0:
                inputs = inputs.mul_(self.scale)
        return inputs, self.labels[indices]


def check_labels(lowest: int, highest: int, num_classes: int) -> None:
    """Raise UserError where the labels from `lowest` to `highest` leave 0 to num_classes - 1."""
    wrong = lowest if lowest < 0 else highest
    if not 0 <= wrong < num_classes:
        what = f"train.dataset has the label {wrong}, but labels go from 0 to num_classes - 1"
        raise UserError(f"{what}, which is {num_classes - 1}")


def num_classes(*parts: Source | Stream | None) -> int | None:
    """Return the number of classes of all parts together; None where none states it."""
    numbers = [getattr(part, "num_classes", None) for part in parts]
    return max((number for number in numbers if number is not None), default=None)


def is_pair(content: Any) -> bool:
    """Return whether a sample or batch is (inputs, targets) with inputs that are one tensor."""
    is_two = isinstance(content, (tuple, list)) and len(content) == 2
    return is_two and isinstance(content[0], torch.Tensor)


def is_plain(value: Any) -> bool:
    """Return whether a value consists of tensors, plain values and containers of them."""
    if isinstance(value, dict):
        return all(type(key) in PLAIN and is_plain(item) for key, item in value.items())
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    return type(value) in (*PLAIN, torch.Tensor)


def content_sha256(content: Batch) -> str:
    """Return a digest of a batch's tensors, arrays, plain values and containers; of others none."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        digest.update(f"{type(value).__name__} ".encode())
        if isinstance(value, torch.Tensor):
            digest.update(f"{value.dtype} {tuple(value.shape)} ".encode())
            flat = value.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().tobytes())
        elif isinstance(value, (Mapping, list, tuple)):
            for item in value.items() if isinstance(value, Mapping) else value:
                add(item)
        elif hasattr(value, "__array_interface__"):  # of NumPy, or an image of Pillow
            array = np.asarray(value)
            if not array.dtype.hasobject:
                digest.update(f"{array.dtype} {array.shape} ".encode() + array.tobytes())
        elif isinstance(value, (*PLAIN, bytes)):
            digest.update(f"{value!r} ".encode())

    add(content)
    return digest.hexdigest()


def check_plain(whose: str, state: Any) -> None:
    """Raise UserError where no checkpoint can hold a state. whose: the key and what it is of."""
    if not is_plain(state):
        what = f"{whose} holds more than tensors, numbers, texts and containers of them"
        hint = "convert the rest, such as numbers of NumPy"
        raise UserError(f"{what}, which no checkpoint can hold", hint)


def check_length(where: str, values: object, n: int, what: str = "inputs") -> None:
    """Raise UserError unless `values` is a batch of `n`. where: the key that returned it."""
    if not isinstance(values, torch.Tensor):
        raise UserError(f"{where} returns a {type(values).__name__}, not a tensor of {n} {what}")
    length = len(values) if values.ndim else 0
    if length != n:
        raise UserError(f"{where} returns {length} {what} for {n} samples: return one for each")


def check_batch(content: Batch, n: int) -> None:
    """Raise UserError where a batch of a pair (inputs, targets) has not `n` of both."""
    if isinstance(content, (tuple, list)) and len(content) == 2:
        for values, what in zip(content, ("inputs", "labels"), strict=True):
            if isinstance(values, torch.Tensor):
                check_length("train.dataset", values, n, what)
