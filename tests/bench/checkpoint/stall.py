"""B8: how long a durable checkpoint interrupts the training."""

from slurm_job_kit.trainer.training.loop import Loop, train_step
from slurm_job_kit.trainer.training.run import prepare
from tests.bench.checkpoint import wide
from tests.bench.place import Place, wait_for_device
from tests.bench.rounds import Figure, Target, interleaved, milliseconds, ratio, timed

STEPS_BEFORE = 10  # before the first save; by default it comes later


def measure(place: Place) -> list[Figure]:
    loop = prepare(place.context(wide.spec_of(1000)))
    for step in range(STEPS_BEFORE):
        batches = loop.data.train_batches.micro_batches(step)
        train_step(loop.replica, batches, 1, loop.train.lr, loop.train)
    return [figure(place, loop, Target(">=", 9))]


def figure(place: Place, loop: Loop, target: Target) -> Figure:
    """Seconds until the training continues: torch.save, fsync, rename / the kit's save.

    No save is in flight when the next one begins.
    """
    plain = wide.TorchSave(place.folder)

    def save() -> None:
        loop.checkpoints.save(loop.replica, loop.state)
        wait_for_device()

    def kit() -> float:
        loop.state.global_step += 1
        took_s = timed(save)
        loop.checkpoints.finish(lambda: None)
        return took_s

    wait_for_device()
    times = interleaved({"torch.save": lambda: timed(lambda: plain.save(loop.replica)), "kit": kit})
    loop.close()
    stalls = f"{milliseconds(times['torch.save'])} / {milliseconds(times['kit'])}"
    size = f"{plain.path.stat().st_size / 1e6:.0f} MB"
    what = f"{size}: torch.save, fsync, rename / the kit's stall ({stalls})"
    return ratio(what, times["torch.save"], times["kit"], target)
