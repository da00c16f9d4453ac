"""B4: the time of a training of the kit, against a bare DDP loop of as many steps."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from slurm_job_kit.jobs.base.files import read_jsonl
from slurm_job_kit.jobs.contract.spec import Checkpoint, Spec, Train
from slurm_job_kit.trainer.data.batches import Batches
from slurm_job_kit.trainer.data.tables import digits
from tests.bench.loop import bare
from tests.bench.place import Place, StepClock, saves_of
from tests.bench.rounds import Figure, Target, interleaved, milliseconds, ratio

WARM_UP_STEPS = 100
LONG_ROUNDS, LONG_ROUND_S = 5, 8  # more than 30 s of the kit in a row
BARE_SHARE = 5  # a round of the bare loop has a fifth of the steps, and counts as often
PROBE_STEPS = 600  # which show how long a round of that time is
SIDES = "kit / bare DDP loop"
LEAST = 3  # saves and evaluations of a row; each round has about a fifth of them


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


def measure(place: Place) -> list[Figure]:
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
    epochs, stalls_s, counts = _epochs_of(place, case), list[float](), Counter[str]()
    spec = Spec(train=Train(**case.model, dataset="digits", epochs=epochs))
    end = epochs * _steps_per_epoch(place, spec)

    def kit() -> float:
        clock = StepClock(WARM_UP_STEPS)
        run = place.train(spec, clock)
        stalls_s.extend(each["stall_s"] for each in saves_of(run))
        counts["evaluations"] += sum("eval_loss" in line for line in read_jsonl(run.metrics))
        return clock.seconds

    short = WARM_UP_STEPS + (end - WARM_UP_STEPS) // BARE_SHARE
    scale = (end - WARM_UP_STEPS) / (short - WARM_UP_STEPS)
    variants = {"kit": kit, "bare": lambda: scale * _bare_s(place, spec, short)}
    times = interleaved(variants, LONG_ROUNDS, warm_up=0)  # the probe has warmed up
    steps = milliseconds(times["bare"], end - WARM_UP_STEPS)
    what = (
        f"{case.title}, default spec: {SIDES} ({steps} a step; {sum(times['kit']):.0f} s "
        f"of the kit with {len(stalls_s)} saves, {counts['evaluations']} evaluations)"
    )
    figure = ratio(what, times["kit"], times["bare"], case.with_default_spec)
    if place.distributed.is_first:
        assert min(len(stalls_s), counts["evaluations"]) >= LEAST, f"too few to count: {what}"
    return replace(figure, detail={**figure.detail, "save_stalls_s": stalls_s})


def _epochs_of(place: Place, case: Case) -> int:
    """How many epochs the kit needs for a round of LONG_ROUND_S, by a short training."""
    per_epoch = _steps_per_epoch(place, Spec())
    probe = PROBE_STEPS // per_epoch
    spec = Spec(train=Train(**case.model, dataset="digits", epochs=probe))
    step_s = place.seconds(spec, WARM_UP_STEPS) / (probe * per_epoch - WARM_UP_STEPS)
    needed = torch.tensor(math.ceil((LONG_ROUND_S / step_s + WARM_UP_STEPS) / per_epoch))
    dist.broadcast(needed, 0)
    return int(needed)


def _without_saves(place: Place, case: Case) -> Figure:
    """A training of more than the measured steps; no evaluation, and no commit before its end."""
    end = WARM_UP_STEPS + case.num_steps
    train = Train(**case.model, dataset="digits", eval_every_epochs=None)
    epochs = end // _steps_per_epoch(place, Spec(train=train)) + 1
    spec = Spec(train=replace(train, epochs=epochs), checkpoint=Checkpoint(interval=None))

    def kit() -> float:
        clock = StepClock(WARM_UP_STEPS, end)
        run = place.train(spec, clock)
        assert len(saves_of(run)) <= 1, "a commit before the end"
        return clock.seconds

    times = interleaved({"kit": kit, "bare": lambda: _bare_s(place, spec, end)})
    steps = milliseconds(times["bare"], case.num_steps)
    what = f"{case.title}, no checkpoint or evaluation: {SIDES} ({steps} a step)"
    return ratio(what, times["kit"], times["bare"], case.without_saves)


def _steps_per_epoch(place: Place, spec: Spec) -> int:
    world_size = place.distributed.world_size
    return Batches.of(spec.train, len(digits()[0]), world_size).steps_per_epoch


def _bare_s(place: Place, spec: Spec, end: int) -> float:
    clock = StepClock(WARM_UP_STEPS, end)
    bare.train(place, spec.train, end, clock)
    dist.barrier()
    return clock.seconds
