"""G2: how long a save of ResNet-50's state interrupts a GPU: torch.save / the kit."""

from slurm_job_kit.jobs.contract.spec import Checkpoint, Spec
from slurm_job_kit.trainer.training.run import prepare
from tests.bench.checkpoint import stall
from tests.bench.gpu.throughput import IMAGES
from tests.bench.place import Place
from tests.bench.rounds import Figure, Target


def measure(place: Place) -> list[Figure]:
    context = place.context(Spec(train=IMAGES, checkpoint=Checkpoint(interval=None, best=None)))
    return [stall.figure(place, prepare(context), Target(">=", 20))]
