"""G1: ResNet-50 and GPT-2 on one GPU in bf16: a step of the kit / of a bare loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.contract.spec import Checkpoint, Log, Spec, Train
from tests.bench.loop import bare
from tests.bench.place import Place, StepClock
from tests.bench.rounds import Figure, Target, interleaved, ratio, sized

STEPS: int = sized(20, 2)  # that are measured, after as many others
VOCABULARY, TOKENS = sized((50304, 1024), (300, 16))
IMAGES = Train(
    **sized({"model": "resnet50"}, {"model_args": {"channels": [4], "blocks_per_stage": 1}}),
    dataset=f"{__name__}:images",
    micro_batch_size=sized(256, 4),
    precision="bf16",
    channels_last=True,
    deterministic=False,
    eval_every_epochs=None,
)
TEXT = replace(  # 124 million parameters
    IMAGES,
    model="gpt",
    model_args=sized({"n_layer": 12, "n_head": 12, "n_embd": 768}, {"n_layer": 1, "n_embd": 32}),
    objective="language_model",
    dataset=f"{__name__}:text",
    micro_batch_size=sized(32, 2),
    channels_last=False,
    optimizer="adamw",
    lr=1e-4,
)
# What a log line has of each.
CASES = {
    "GPT-2": (TEXT, ("samples_per_s", "tokens_per_s", "mfu")),
    "ResNet-50": (IMAGES, ("samples_per_s", "gpu_use")),
}


@dataclass(frozen=True)
class Repeated:
    """As many samples as the steps need, all of them those of one batch."""

    inputs: torch.Tensor
    num_classes: int | None = None
    vocab_size: int | None = None

    def __len__(self) -> int:
        return len(self.inputs) * 2 * STEPS

    def to(self, device: torch.device) -> Repeated:
        return replace(self, inputs=self.inputs.to(device))

    def batch(self, indices: torch.Tensor) -> Any:
        inputs = self.inputs[: len(indices)]
        return (inputs, indices % self.num_classes) if self.num_classes else inputs


def images() -> tuple[Repeated, None]:
    pixels = torch.rand(IMAGES.micro_batch_size, 3, *[sized(224, 16)] * 2)
    return Repeated(pixels.to(memory_format=torch.channels_last), num_classes=1000), None


def text() -> tuple[Repeated, None]:
    tokens = torch.randint(VOCABULARY, (TEXT.micro_batch_size, TOKENS + 1))
    return Repeated(tokens, vocab_size=VOCABULARY), None


def measure(place: Place) -> Iterator[Figure]:
    """Seconds of the same steps, without and with torch.compile; without saves and evaluation."""
    for is_compiled in (False, True):
        for title, (train, names) in CASES.items():
            how = f"{title} {'compiled' if is_compiled else 'eager'}"
            yield from _figures(place, how, replace(train, compile=is_compiled), names)


def _figures(place: Place, how: str, train: Train, names: tuple[str, ...]) -> Iterator[Figure]:
    quiet = Checkpoint(interval=None, best=None)
    spec, speeds = Spec(train=train, checkpoint=quiet, log=Log(every_steps=STEPS)), []

    def kit() -> float:
        clock = StepClock(STEPS - 1, 2 * STEPS - 1)
        run = place.train(spec, clock)
        speeds.append(read_json(run.progress)["speed"])
        return clock.seconds

    def by_hand() -> float:
        clock = StepClock(STEPS - 1, 2 * STEPS - 1)
        wrap = torch.compile if train.compile else lambda module: module
        bare.train(place, train, 2 * STEPS - 1, clock, wrap)
        return clock.seconds

    # Each round compiles the model anew.
    times = interleaved({"kit": kit, "bare": by_hand}, 2 if train.compile else 4)
    yield ratio(f"{how}, kit / bare loop", times["kit"], times["bare"], Target("<=", 1.01))
    for name in names:
        values = [each[name] for each in speeds[1:] if name in each]
        lacks = "" if values else ", not run: no GPU of the table of peaks, or no nvidia-ml-py"
        value = float(f"{median(values):.4g}") if values else None
        yield Figure(f"{how}, {name} in the log of the kit{lacks}", value, None)
