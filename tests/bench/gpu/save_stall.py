"""G2: how long a save of ResNet-50's state interrupts a GPU: torch.save / the kit."""

import torch

from slurm_job_kit.jobs.contract.spec import Checkpoint, Spec
from slurm_job_kit.trainer.training.run import prepare
from tests.bench.checkpoint.wide import TorchSave
from tests.bench.gpu.throughput import TRAIN
from tests.bench.place import Place
from tests.bench.rounds import Figure, Target, interleaved, milliseconds, ratio, timed


def measure(place: Place) -> list[Figure]:
    """Seconds until the GPU is free again: torch.save, fsync, rename / the copy of the kit's save.

    The commit of the kit's save, in a thread, ends before the next round begins.
    """
    context = place.context(Spec(train=TRAIN, checkpoint=Checkpoint(interval=None, best=None)))
    loop = prepare(context)
    replica, state, checkpoints = loop.replica, loop.state, loop.checkpoints
    plain = TorchSave(place.folder)

    def kit() -> float:
        state.global_step += 1

        def save() -> None:
            checkpoints.save(replica, state)
            torch.cuda.synchronize()

        took_s = timed(save)
        checkpoints.finish(lambda: None)
        return took_s

    torch.cuda.synchronize()
    times = interleaved({"torch.save": lambda: timed(lambda: plain.save(replica)), "kit": kit})
    loop.close()
    stalls = f"{milliseconds(times['torch.save'])} / {milliseconds(times['kit'])}"
    what = f"stall for {plain.path.stat().st_size / 1e6:.0f} MB: torch.save / kit ({stalls})"
    return [ratio(what, times["torch.save"], times["kit"], Target(">=", 20))]
