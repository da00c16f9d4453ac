"""B5: the time of a training by other libraries and by the tutorials' loop, against the kit's."""

import itertools
from functools import partial
from importlib.metadata import version
from statistics import median

from slurm_job_kit.jobs.rundir import read_jsonl
from slurm_job_kit.jobs.spec import Spec, Train
from tests.bench.catalogue import package
from tests.bench.peers import PEERS, Peer, Task
from tests.bench.place import Place, StepClock, saves_of
from tests.bench.rounds import Figure, Target, interleaved, ratio

ROUNDS = 5
CASES = {
    "tiny MLP": Train(model="mlp", dataset="digits", epochs=100),
    "CNN of CIFAR's shape": Train(
        model="mini_resnet",
        model_args={"channels": [16, 32], "blocks_per_stage": 1},
        dataset="synthetic_images",
        dataset_args={"num_train": 640, "num_test": 128, "size": 32, "channels": 3},
        epochs=5,
    ),
}


def measure(place: Place) -> list[Figure]:
    """Seconds from the first batch to the end, each with its own defaults, one rank, one thread."""
    return [figure for title in CASES for figure in _figures(place, title)]


def _figures(place: Place, title: str) -> list[Figure]:
    spec = Spec(train=CASES[title])
    task, numbers = Task(spec), itertools.count()

    def kit() -> float:
        clock = StepClock(0)
        run = place.train(spec, clock)
        per_epoch = read_jsonl(run.metrics)[-1]["step"] // spec.train.epochs
        task.save_after = [each["step"] // per_epoch for each in saves_of(run)]
        return clock.seconds

    def rival(peer: Peer) -> float:
        return task.seconds(peer.train, place.folder / f"{spec.train.model}-{next(numbers)}")

    missing = {peer.name: package(peer.package) for peer in PEERS if peer.package}
    # The kit is first also in the warm-up: "same work" saves as often as it did.
    variants = {"kit": kit}
    variants |= {peer.name: partial(rival, peer) for peer in PEERS if not missing.get(peer.name)}
    times = interleaved(variants, ROUNDS)

    def figure(peer: Peer) -> Figure:
        if why := missing.get(peer.name):
            return Figure(f"{title}: {peer.name} / kit; {why}", None, None)
        own, its = times["kit"], times[peer.name]
        release = f" {version(peer.package)}" if peer.package else ""
        times_s = f"{median(its):.2f} / {median(own):.2f} s"
        what = f"{title}: {peer.name}{release} / kit ({times_s}); {peer.differs}"
        return ratio(what, its, own, Target(">=", peer.target if title == "tiny MLP" else 1.0))

    return [figure(peer) for peer in PEERS]
