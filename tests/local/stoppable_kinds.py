"""Other kinds of work for tests of exactness: a language model and streams."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from slurm_job_kit.trainer.api import Sums
from tests import parts
from tests.local.stoppable import Passes, images


class LanguageModel(Passes):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = parts.Transformer(layers=1, width=8, dropout=0.2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.counted(self.transformer(inputs))


def tokens(num_train: int) -> tuple[parts.Windows, parts.Windows]:
    return parts.tokens(num_train, 11, length=8)


class Masked(Passes):
    """A convolution with dropout: images [n, 1, 6, 6] to values of the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.conv: nn.Module = nn.Conv2d(1, 1, 3, padding=1)
        self.dropout = nn.Dropout(0.3)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.counted(self.conv(self.dropout(pixels)))


class OwnState(Masked):
    """Two convolutions, with state that each pass replaces by other objects.

    The mean of the inputs differs between ranks; without rank 0's buffer the ranks would go apart.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 11, 3, padding=1), nn.Conv2d(11, 11, 3, padding=1))
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(()))
        self.extra = torch.zeros(2)

    def get_extra_state(self) -> dict[str, Any]:
        """What each pass in training adds up."""
        return {"extra": self.extra, "text": "kept"}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        assert state["text"] == "kept"
        self.extra = state["extra"].clone()

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        if self.training and self.is_warm:
            self.mean = 0.9 * self.mean + 0.1 * pixels.mean()
            self.extra = self.extra + 0.01
        hidden = self.conv(self.dropout(pixels)).mean(dim=1, keepdim=True)
        return self.counted(hidden * (1 + self.mean + self.extra.sum()))


def known_pixels(model: nn.Module, batch: dict[str, torch.Tensor]) -> Sums:
    """The squared error of the pixels that are known; each sample has another number of them."""
    error = (model(batch["image"]) - batch["target"]).square() * batch["is_known"]
    num_known = batch["is_known"].sum()
    return Sums(error.sum(), num_known, {"error": error.detach().sum()})


class Sample(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Images as dicts, with a mask that has fewer pixels the later the sample is."""

    def __init__(self, num: int, seed: int) -> None:
        self.images, _ = images(num, seed)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        image = self.images[index].float() / 255
        is_known = torch.zeros(1, 6, 6)
        is_known.view(-1)[: 36 - index % 36] = 1.0
        noise = 0.1 * torch.randn(image.shape)
        return {"image": image + noise, "target": image, "is_known": is_known}


class Stream(torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):
    def __init__(self, num: int) -> None:
        self.samples, self.position, self.epoch = Sample(num, 0), 0, 0

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        order = torch.randperm(
            len(self.samples), generator=torch.Generator().manual_seed(self.epoch)
        )
        while self.position < len(order):
            self.position += 1
            yield self.samples[int(order[self.position - 1])]

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """The position after the sample that was read last."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class TensorStream(Stream):
    """The same stream with its position in a tensor."""

    def state_dict(self) -> dict[str, Any]:
        return {"position": torch.tensor(self.position)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = int(state["position"])


def tensor_stream(num_train: int) -> tuple[TensorStream, Sample]:
    return TensorStream(num_train), Sample(11, 1)


def stream(num_train: int) -> tuple[Stream, Sample]:
    """A stream of training samples, which all ranks share, and held-out samples."""
    return Stream(num_train), Sample(11, 1)
