"""B4: the cost of a step of the kit, with all features on, against a bare DDP loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from slurm_job_kit.jobs.spec import Checkpoint, Log, Spec, Train
from slurm_job_kit.trainer.data.batches import Batches
from slurm_job_kit.trainer.data.builtin import digits
from tests.bench.loop import bare
from tests.bench.place import Place, StepClock
from tests.bench.rounds import Figure, Target, interleaved, milliseconds, ratio

WARM_UP_STEPS = 100


@dataclass(frozen=True)
class Case:
    """A model on the digits, and the number of its steps in a round."""

    title: str
    model: dict[str, Any]
    num_steps: int
    target: Target


CASES = (
    Case("tiny MLP", {"model": "mlp"}, 2000, Target("<=", 1.03)),
    Case(
        "small CNN",
        {"model": "mini_resnet", "model_args": {"channels": [16, 32], "blocks_per_stage": 1}},
        240,
        Target("<=", 1.01),
    ),
)


def measure(place: Place) -> list[Figure]:
    """Seconds of this many steps of either, by the same clock, after a warm-up.

    The kit agrees on stops, logs every 10 steps, writes its progress, has a watchdog, and commits a
    checkpoint in every round.
    """
    return [_figure(place, case) for case in CASES]


def _figure(place: Place, case: Case) -> Figure:
    end = WARM_UP_STEPS + case.num_steps
    spec = spec_of(case.model, end + 1, place.distributed.world_size)

    def kit() -> float:
        clock = StepClock(WARM_UP_STEPS, end)
        place.train(spec, clock)
        return clock.seconds

    def rival() -> float:
        clock = StepClock(WARM_UP_STEPS, end)
        bare.train(place, spec.train, end, clock)
        dist.barrier()
        return clock.seconds

    times = interleaved({"kit": kit, "bare": rival})
    steps = milliseconds(times["bare"], case.num_steps)
    what = f"{case.title}, kit / bare DDP loop ({steps} a step)"
    return ratio(what, times["kit"], times["bare"], case.target)


def spec_of(model: dict[str, Any], num_steps: int, world_size: int) -> Spec:
    """A training of at least this many steps, with a checkpoint after half of them."""
    train = Train(**model, dataset="digits", eval_every_epochs=None)
    batches = Batches.of(train, len(digits()[0]), world_size)
    return Spec(
        train=Train(
            **model,
            dataset="digits",
            eval_every_epochs=None,
            epochs=-(-num_steps // batches.steps_per_epoch),
        ),
        checkpoint=Checkpoint(every_epochs=None, every_steps=num_steps // 2),
        log=Log(every_steps=10),
    )
