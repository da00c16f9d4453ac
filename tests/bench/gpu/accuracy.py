"""G3: seconds until a small residual network reads 97 % of the held-out digits, on one GPU."""

import time
from statistics import median, quantiles

from slurm_job_kit.jobs.rundir import read_jsonl
from slurm_job_kit.jobs.spec import Spec, Train
from slurm_job_kit.trainer.run import prepare
from tests.bench.place import Place, StepClock
from tests.bench.rounds import Figure

WANTED, ROUNDS = 0.97, 5
TRAIN = Train(dataset="digits", epochs=10, lr=0.05, weight_decay=5e-4, warmup_steps=20)


class _Steps(StepClock):
    def __init__(self) -> None:
        super().__init__(0, 0)
        self.began: dict[int, float] = {}

    def begin(self, step: int) -> None:
        self.began.setdefault(step, time.perf_counter())


def measure(place: Place) -> list[Figure]:
    """The time from the first step to the evaluation that first reaches it, with all defaults."""
    times = [found for _ in range(ROUNDS) if (found := _seconds(place)) is not None]
    if len(times) < ROUNDS:
        return [Figure("trainings that never reached 97 %", ROUNDS - len(times), None)]
    low, _, high = quantiles(times, n=4)
    return [Figure("seconds from the first step to 97 %", median(times), None, (low, high))]


def _seconds(place: Place) -> float | None:
    context, steps = place.context(Spec(train=TRAIN)), _Steps()
    place.run(context, prepare(context), steps)
    lines = read_jsonl(context.run.dir.metrics)
    reached = (line["step"] for line in lines if line.get("eval_accuracy", 0.0) >= WANTED)
    step = next((step for step in reached if step in steps.began), None)
    return None if step is None else steps.began[step] - steps.began[0]
