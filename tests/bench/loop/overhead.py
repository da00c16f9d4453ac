"""B4: the time of a training of the kit, against a bare DDP loop of as many steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist

from slurm_job_kit.jobs.rundir import RunDir, read_jsonl
from slurm_job_kit.jobs.spec import Checkpoint, Spec, Train
from slurm_job_kit.trainer.data.batches import Batches
from slurm_job_kit.trainer.rooms.zoo.data_sets import digits
from tests.bench.loop import bare
from tests.bench.place import Place, StepClock, saves_of
from tests.bench.rounds import Figure, Target, interleaved, milliseconds, ratio

WARM_UP_STEPS = 100
LONG_ROUNDS, LONG_ROUND_S = 5, 8  # more than 30 s of the kit in a row
BARE_SHARE = 5  # a round of the bare loop has a fifth of the steps, and counts as often
PROBE_STEPS = 600  # which show how long a round of that time is
SIDES = "kit / bare DDP loop"
# Once per row; each round has about a fifth of it.
LEAST_SAVES = LEAST_EVALUATIONS = 3


@dataclass(frozen=True)
class Case:
    """A model on the digits; targets of the default spec, and of one that does not save."""

    title: str
    model: dict[str, Any]
    num_steps: int
    with_default_spec: Target
    without_saves: Target


CASES = (
    Case("tiny MLP", {"model": "mlp"}, 1500, Target("<=", 1.25), Target("<=", 1.03)),
    Case(
        "small CNN",
        {"model": "mini_resnet", "model_args": {"channels": [16, 32], "blocks_per_stage": 1}},
        200,
        Target("<=", 1.03),
        Target("<=", 1.01),
    ),
)


@dataclass
class Done:
    """What the kit's runs of a row have done, by their own records."""

    seconds: float = 0
    saves: int = 0
    evaluations: int = 0
    stalls_s: list[float] = field(default_factory=list)

    def add(self, run: RunDir, seconds: float) -> None:
        """Add a completed run."""
        saves = saves_of(run)
        self.seconds += seconds
        self.saves += len(saves)
        self.stalls_s += [each["stall_s"] for each in saves]
        self.evaluations += sum("eval_loss" in line for line in read_jsonl(run.metrics))


def measure(place: Place) -> list[Figure]:
    """The figures of CASES."""
    return figures(place, CASES)


def figures(place: Place, cases: Sequence[Case]) -> list[Figure]:
    """Seconds of as many steps of either, after a warm-up: by default, and without two features.

    In both the kit agrees on stops, logs every 10 steps, writes its progress and timeline, and has
    a watchdog. The bare loop does nothing but train. The kit has no DDP where there is one rank.
    """
    return [
        *(_with_default_spec(place, case) for case in cases),
        *(_without_saves(place, case) for case in cases),
    ]


def _with_default_spec(place: Place, case: Case) -> Figure:
    """A whole training from the warm-up to its last commit, evaluations and saves included."""
    epochs, done = _epochs_of(place, case), Done()
    spec = Spec(train=Train(**case.model, dataset="digits", epochs=epochs))
    end = epochs * _steps_per_epoch(place, spec)

    def kit() -> float:
        clock = StepClock(WARM_UP_STEPS)
        run = place.train(spec, clock)
        if place.distributed.is_first:
            done.add(run, clock.seconds)
        return clock.seconds

    short = WARM_UP_STEPS + (end - WARM_UP_STEPS) // BARE_SHARE
    scale = (end - WARM_UP_STEPS) / (short - WARM_UP_STEPS)
    variants = {"kit": kit, "bare": lambda: scale * _bare_s(place, spec, short)}
    times = interleaved(variants, LONG_ROUNDS, warm_up=0)  # the probe has warmed up
    steps = milliseconds(times["bare"], end - WARM_UP_STEPS)
    what = (
        f"{case.title}, default spec: {SIDES} ({steps} a step; {done.seconds:.0f} s "
        f"of the kit with {done.saves} saves, {done.evaluations} evaluations)"
    )
    figure = ratio(what, times["kit"], times["bare"], case.with_default_spec)
    is_enough = done.saves >= LEAST_SAVES and done.evaluations >= LEAST_EVALUATIONS
    if place.distributed.is_first:
        assert is_enough, f"too few to count: {done}"
    return replace(figure, detail={**figure.detail, "save_stalls_s": done.stalls_s})


def _epochs_of(place: Place, case: Case) -> int:
    """How many epochs the kit needs for a round of LONG_ROUND_S, by a short training."""
    per_epoch = _steps_per_epoch(place, Spec())
    probe = PROBE_STEPS // per_epoch
    clock = StepClock(WARM_UP_STEPS)
    place.train(Spec(train=Train(**case.model, dataset="digits", epochs=probe)), clock)
    step_s = clock.seconds / (probe * per_epoch - WARM_UP_STEPS)
    needed = torch.tensor(math.ceil((LONG_ROUND_S / step_s + WARM_UP_STEPS) / per_epoch))
    dist.broadcast(needed, 0)
    return int(needed)


def _without_saves(place: Place, case: Case) -> Figure:
    end = WARM_UP_STEPS + case.num_steps
    spec = spec_without_saves(place, case.model, end)

    def kit() -> float:
        clock = StepClock(WARM_UP_STEPS, end)
        run = place.train(spec, clock)
        assert len(saves_of(run)) <= 1, "a commit before the end"
        return clock.seconds

    times = interleaved({"kit": kit, "bare": lambda: _bare_s(place, spec, end)})
    steps = milliseconds(times["bare"], case.num_steps)
    what = f"{case.title}, no checkpoint or evaluation: {SIDES} ({steps} a step)"
    return ratio(what, times["kit"], times["bare"], case.without_saves)


def spec_without_saves(place: Place, model: dict[str, Any], num_steps: int) -> Spec:
    """A training of more than so many steps, with a commit and no evaluation before its end."""
    train = Train(**model, dataset="digits", eval_every_epochs=None)
    epochs = num_steps // _steps_per_epoch(place, Spec(train=train)) + 1
    return Spec(train=replace(train, epochs=epochs), checkpoint=Checkpoint(interval=None))


def _steps_per_epoch(place: Place, spec: Spec) -> int:
    world_size = place.distributed.world_size
    return Batches.of(spec.train, len(digits()[0]), world_size).steps_per_epoch


def _bare_s(place: Place, spec: Spec, end: int) -> float:
    clock = StepClock(WARM_UP_STEPS, end)
    bare.train(place, spec.train, end, clock)
    dist.barrier()
    return clock.seconds
