"""B7: gradient accumulation that exchanges gradients once per optimizer step."""

from itertools import count

import torch.distributed as dist
from torch.nn.functional import cross_entropy

from slurm_job_kit.jobs.contract.spec import Checkpoint, Log, Spec, Train
from slurm_job_kit.trainer.training.loop import Loop
from slurm_job_kit.trainer.training.run import prepare
from tests.bench.place import Place, StepClock
from tests.bench.rounds import Figure, Target, interleaved, milliseconds, ratio

NUM_MICRO_BATCHES = 8
WARM_UP_STEPS, NUM_STEPS = 3, 15
# 1.1 million parameters: exchanging their gradients takes several times as long as a pass over
# four samples, as it does for large models on a network.
TRAIN = Train(
    model="mlp",
    model_args={"hidden": [1000, 1000]},
    dataset="digits",
    micro_batch_size=4,
    grad_accum_steps=NUM_MICRO_BATCHES,
    eval_every_epochs=None,
)
SPEC = Spec(train=TRAIN, checkpoint=Checkpoint(interval=None), log=Log(every_steps=10))


def measure(place: Place) -> list[Figure]:
    """Seconds of this many optimizer steps of either. tests/core counts the exchanges in a step."""

    steps = (WARM_UP_STEPS, WARM_UP_STEPS + NUM_STEPS)

    def naive() -> float:
        loop, clock = prepare(place.context(SPEC)), StepClock(*steps)
        _accumulate_naively(loop, clock)
        loop.close()
        dist.barrier()
        return clock.seconds

    times = interleaved({"naive": naive, "kit": lambda: place.seconds(SPEC, *steps)})
    step = milliseconds(times["kit"], NUM_STEPS)
    what = f"{NUM_MICRO_BATCHES} micro batches of 4, 1.1 M parameters: naive / kit ({step} a step)"
    return [ratio(what, times["naive"], times["kit"], Target(">=", 3))]


def _accumulate_naively(loop: Loop, clock: StepClock) -> None:
    """The same steps with DDP called directly: each backward pass exchanges all gradients."""
    replica, batches = loop.replica, loop.data.train_batches
    for step in count():
        clock.begin(step)
        if step == WARM_UP_STEPS + NUM_STEPS:
            return
        for inputs, labels in batches.micro_batches(step):
            loss = cross_entropy(replica.wrapped(inputs), labels) / batches.num_micro_batches(step)
            loss.backward()
        replica.optimizer.step()
        replica.optimizer.zero_grad()
