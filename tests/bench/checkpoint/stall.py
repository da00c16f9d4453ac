"""B8: how long a durable checkpoint interrupts the training."""

from slurm_job_kit.trainer.training.loop import train_step
from slurm_job_kit.trainer.training.run import prepare
from tests.bench.checkpoint import wide
from tests.bench.place import Place
from tests.bench.rounds import Figure, Target, interleaved, milliseconds, ratio, timed

STEPS_BEFORE = 10  # before the first save; by default it comes later


def measure(place: Place) -> list[Figure]:
    """Seconds until the training continues: torch.save, fsync, rename / the kit's save.

    No save is in flight when the next one begins.
    """
    plain = wide.TorchSave(place.folder)
    loop = prepare(place.context(wide.spec_of(1000)))
    for step in range(STEPS_BEFORE):
        batches = loop.data.train_batches.micro_batches(step)
        train_step(loop.replica, batches, 1, loop.train.lr, loop.train)

    def kit() -> float:
        loop.state.global_step += 1
        took_s = timed(lambda: loop.checkpoints.save(loop.replica, loop.state))
        loop.checkpoints.finish(lambda: None)
        return took_s

    times = interleaved({"torch.save": lambda: timed(lambda: plain.save(loop.replica)), "kit": kit})
    loop.close()
    stalls = f"{milliseconds(times['torch.save'])} / {milliseconds(times['kit'])}"
    what = f"{wide.MEGABYTES} MB: torch.save, fsync, rename / the kit's stall ({stalls})"
    return [ratio(what, times["torch.save"], times["kit"], Target(">=", 9))]
