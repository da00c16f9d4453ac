"""The two kinds of data sets: whole batches on the device, or single samples on the CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch

from trainer.errors import UserError

Batch = tuple[torch.Tensor, torch.Tensor]  # (inputs [n, ...], labels int64 [n])
BYTE_SCALE = 1 / 255  # uint8 inputs times this are float32 from 0 to 1


@runtime_checkable
class BatchSource(Protocol):
    """A data set that is indexed by whole batches, on the device."""

    @property
    def num_classes(self) -> int:
        """Number of classes; labels go from 0 to num_classes - 1."""

    def __len__(self) -> int: ...

    def to(self, device: torch.device) -> BatchSource:
        """Return the same samples on a device."""

    def batch(self, indices: torch.Tensor) -> Batch:
        """Return (inputs [n, ...], labels int64 [n]) of the samples `indices`, int64 [n].

        inputs: float32, or uint8; uint8 inputs are later scaled by BYTE_SCALE.
        """


@runtime_checkable
class PerSampleSet(Protocol):
    """A data set that is read by sample, on the CPU; by launch.num_workers processes, if any."""

    @property
    def num_classes(self) -> int:
        """Number of classes; labels go from 0 to num_classes - 1."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Return (input, label).

        input: float32, or uint8; all of one shape. uint8 inputs are later scaled by BYTE_SCALE.
        """


Source = BatchSource | PerSampleSet


@dataclass(frozen=True)
class Samples:
    """A data set in memory. A dataset callable may return two of them: (train, test).

    inputs: uint8 or float32 [N, ...]; the model gets them as float32 times `scale`.
    labels: int64 [N], or another integer type, from 0 to num_classes - 1.
    num_classes: 0 stands for the highest label plus 1.
    Raises UserError where inputs and labels do not fit together.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    scale: float = 1.0
    num_classes: int = 0

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise UserError(
                f"train.dataset returns {len(self.inputs)} inputs, but {len(self.labels)} labels"
            )
        if self.labels.is_floating_point():
            raise UserError(
                f"train.dataset returns labels of {self.labels.dtype}: make them whole numbers, "
                "int64"
            )
        object.__setattr__(self, "labels", self.labels.long())
        if len(self.labels) == 0:
            return
        lowest, highest = int(self.labels.min()), int(self.labels.max())
        if self.num_classes == 0:
            object.__setattr__(self, "num_classes", highest + 1)
        check_labels(lowest, highest, self.num_classes)

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> Samples:
        """Return the same samples on a device."""
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))

    def batch(self, indices: torch.Tensor) -> Batch:
        """Return (inputs [n, ...], labels int64 [n]) of the samples `indices`, int64 [n]."""
        inputs = self.inputs.index_select(0, indices)
        # Bytes that only need BYTE_SCALE stay bytes, which are cheaper to move. They become
        # float32 last, in trainer.data.feed or in the transform.
        if inputs.dtype != torch.uint8 or self.scale != BYTE_SCALE:
            inputs = inputs.float()
            if self.scale != 1.0:
                inputs = inputs.mul_(self.scale)
        return inputs, self.labels[indices]


def check_labels(lowest: int, highest: int, num_classes: int) -> None:
    """Raise UserError where the labels from `lowest` to `highest` leave 0 to num_classes - 1."""
    wrong = lowest if lowest < 0 else highest
    if not 0 <= wrong < num_classes:
        raise UserError(
            f"train.dataset has the label {wrong}, but labels go from 0 to num_classes - 1, "
            f"which is {num_classes - 1}"
        )


def num_classes(train: Source, test: Source) -> int:
    """Return the number of classes of both parts together."""
    return max(train.num_classes, test.num_classes)
