"""B5: the time of a training by other libraries and by the tutorials' loop, against the kit's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from statistics import median

from slurm_job_kit.jobs.rundir import read_jsonl
from slurm_job_kit.jobs.spec import Spec, Train
from tests.bench.catalogue import package
from tests.bench.peers import accelerated, lightning_trainer, tutorial
from tests.bench.peers.task import Peer, Task
from tests.bench.place import Place, StepClock, saves_of
from tests.bench.rounds import Figure, Target, interleaved, ratio

ROUNDS = 5
PEERS: tuple[Peer, ...] = (*tutorial.PEERS, accelerated.PEER, lightning_trainer.PEER)
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
# Of the tiny MLP; a CNN's time is nearly all arithmetic.
TARGETS = {"tutorial's loop": 1.9, "accelerate": 2.2, "Lightning": 4.0}


def measure(place: Place) -> list[Figure]:
    """Seconds from the first batch to the end, each with its own defaults, one rank, one thread."""
    return [figure for title in CASES for figure in _figures(place, title)]


def _figures(place: Place, title: str) -> list[Figure]:
    spec = Spec(train=CASES[title])
    task, numbers = Task(spec), itertools.count()

    def kit() -> float:
        clock = StepClock(0)
        run = place.train(spec, clock)
        metrics = read_jsonl(run.metrics)
        per_epoch = metrics[-1]["step"] // spec.train.epochs
        task.save_after = [each["step"] // per_epoch for each in saves_of(run)]
        return clock.seconds

    def rival(peer: Peer) -> float:
        folder = place.folder / f"{spec.train.model}-{next(numbers)}"
        return task.seconds(peer.train, folder)

    present = [peer for peer in PEERS if peer.package is None or not package(peer.package)]
    # The kit is first also in the warm-up: `same_work` saves as often as it did.
    variants: dict[str, Callable[[], float]] = {"kit": kit}
    variants |= {peer.name: partial(rival, peer) for peer in present}
    times = interleaved(variants, ROUNDS)
    return [
        _figure(title, peer, times) if peer in present else _left_out(title, peer) for peer in PEERS
    ]


def _figure(title: str, peer: Peer, times: dict[str, list[float]]) -> Figure:
    own, its = times["kit"], times[peer.name]
    bound = TARGETS.get(peer.name, 1.0) if title == "tiny MLP" else 1.0
    release = f" {version(peer.package)}" if peer.package else ""
    times_s = f"{median(its):.2f} / {median(own):.2f} s"
    what = f"{title}: {peer.name}{release} / kit ({times_s}); {peer.less}"
    return ratio(what, its, own, Target(">=", bound))


def _left_out(title: str, peer: Peer) -> Figure:
    assert peer.package is not None
    return Figure(f"{title}: {peer.name} / kit; {package(peer.package)}", None, None)
