"""B9: a whole training that always has a durable checkpoint in flight, and one without any."""

from dataclasses import replace

from slurm_job_kit.jobs.contract.spec import Checkpoint, Log, Spec, Train
from slurm_job_kit.trainer.training.run import prepare
from tests.bench.place import Place, StepClock
from tests.bench.rounds import Figure, Target, interleaved, milliseconds, ratio, timed

EVERY_STEPS, NUM_SAMPLES, BATCH_SIZE = 15, 1920, 32
# 0.7 million parameters, 5 MB of state, some ten milliseconds a step.
TRAIN = Train(
    model="mini_resnet",
    model_args={"channels": [64, 128], "blocks_per_stage": 1},
    dataset="tests.bench.data.synthetic:synthetic_images",
    dataset_args={"num_train": NUM_SAMPLES, "num_test": 32, "size": 8, "channels": 3},
    micro_batch_size=BATCH_SIZE,
    eval_every_epochs=None,
)
WITHOUT = Spec(train=TRAIN, checkpoint=Checkpoint(interval=None), log=Log(every_steps=10))


def measure(place: Place) -> list[Figure]:
    """Seconds of the whole loop, with the last commit, which both trainings do."""
    saving = replace(WITHOUT, checkpoint=Checkpoint(every_steps=EVERY_STEPS))

    def trained(spec: Spec) -> float:
        context = place.context(spec)
        loop = prepare(context)
        return timed(lambda: place.run(context, loop, StepClock(0, 0)))

    times = interleaved({"with": lambda: trained(saving), "without": lambda: trained(WITHOUT)})
    steps = milliseconds(times["without"], NUM_SAMPLES // BATCH_SIZE)
    what = f"a durable save each {EVERY_STEPS} steps / none ({steps} a step, 5 MB of state)"
    return [ratio(what, times["with"], times["without"], Target("<=", 1.01))]
