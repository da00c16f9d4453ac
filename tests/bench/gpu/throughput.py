"""G1: ResNet-50 on one GPU, batch 256, bf16, channels_last: a step of the kit / of a bare loop."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from slurm_job_kit.jobs.contract.spec import Checkpoint, Log, Spec, Train
from slurm_job_kit.trainer.plugins.zoo import models
from tests.bench.place import Place, StepClock
from tests.bench.rounds import Figure, Target, interleaved, ratio

BATCH_SIZE, SIZE, CLASSES = 256, 224, 1000
WARM_UP_STEPS, STEPS, ROUNDS = 20, 60, 5
TRAIN = Train(
    model="resnet50",
    dataset=f"{__name__}:images",
    micro_batch_size=BATCH_SIZE,
    precision="bf16",
    channels_last=True,
    deterministic=False,
    eval_every_epochs=None,
)


@dataclass(frozen=True)
class Images:
    """As many images as the steps need, all of them those of one batch."""

    pixels: torch.Tensor
    num_classes = CLASSES

    def __len__(self) -> int:
        return BATCH_SIZE * (WARM_UP_STEPS + STEPS + 1)

    def to(self, device: torch.device) -> Images:
        return replace(self, pixels=self.pixels.to(device))

    def batch(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.pixels[: len(indices)], indices % CLASSES


def images() -> tuple[Images, None]:
    return Images(torch.rand(BATCH_SIZE, 3, SIZE, SIZE)), None


class GpuClock(StepClock):
    """Waits for the GPU before it reads the time."""

    def begin(self, step: int) -> None:
        if step in (WARM_UP_STEPS, WARM_UP_STEPS + STEPS):
            torch.cuda.synchronize()
        super().begin(step)


def measure(place: Place) -> list[Figure]:
    """Seconds of the same steps, without and with torch.compile; without saves and evaluation."""
    return [figure for compiled in (False, True) for figure in _figures(place, compiled)]


def _figures(place: Place, is_compiled: bool) -> list[Figure]:
    train = Train(**{**vars(TRAIN), "compile": is_compiled})
    quiet = Checkpoint(interval=None, best=None)
    spec = Spec(train=train, checkpoint=quiet, log=Log(every_steps=STEPS))

    def kit() -> float:
        clock = GpuClock(WARM_UP_STEPS, WARM_UP_STEPS + STEPS)
        place.train(spec, clock)
        return clock.seconds

    times = interleaved({"kit": kit, "bare": lambda: _bare(place, train)}, ROUNDS)
    how = "compiled" if is_compiled else "eager"
    images_per_s = STEPS * BATCH_SIZE / sorted(times["kit"])[len(times["kit"]) // 2]
    return [
        ratio(f"ResNet-50 {how}, kit / bare loop", times["kit"], times["bare"], Target("<=", 1.01)),
        Figure(f"ResNet-50 {how}, images per second of the kit", round(images_per_s), None),
    ]


def _bare(place: Place, train: Train) -> float:
    """Seconds of the steps in a loop written by hand, on the kit's model and images."""
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = True
    samples = images()[0].to(place.device)
    model: nn.Module = models.resnet50(3, CLASSES).to(place.device)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    forward = torch.compile(model) if train.compile else model
    optimizer = torch.optim.SGD(model.parameters(), train.lr, train.momentum, fused=True)
    order = torch.randperm(len(samples), device=place.device)
    clock = GpuClock(WARM_UP_STEPS, WARM_UP_STEPS + STEPS)
    for step, indices in enumerate(order.split(BATCH_SIZE)):
        clock.begin(step)
        inputs, labels = samples.batch(indices)
        inputs = inputs.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16):
            loss = cross_entropy(forward(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return clock.seconds
