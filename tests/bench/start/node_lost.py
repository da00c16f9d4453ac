"""B19: a node loses power on a real Slurm: from there to the first step of the next attempt."""

import time
from pathlib import Path

import yaml

from tests.bench import rounds
from tests.bench.rounds import Figure, Target
from tests.bench.start.requeue import cluster_of
from tests.core.waiting import wait_for
from tests.slurm.kit import Kit

LOSSES = 5
LIMIT_S = 300
# Slurm notices a loss after its SlurmdTimeout: 300 s where a site does not set it.
CONF = "SlurmdTimeout=60"
SHAPES: dict[str, dict[str, int | str]] = {
    "no spare node, a requeue": {"nodes": 2},
    "a spare node": {"nodes": 2, "spare_nodes": 1},
    "fewer nodes": {"nodes": "1-2"},
}
SPEC = {
    "name": "bench",
    "train": {
        "model": "mlp",
        "dataset": "digits",
        "global_batch_size": 16,
        "max_steps": 100_000_000,
        "eval_every_epochs": None,
    },
    "checkpoint": {"every_minutes": 0.1},
}


def measure(folder: Path) -> list[Figure]:
    """Seconds by the run's own records, on a cluster of three nodes; a run for each loss."""
    losses: dict[str, list[dict[str, float]]] = {shape: [] for shape in SHAPES}
    number = rounds.sized(LOSSES, 2)
    with cluster_of(3, CONF) as cluster:
        kit = Kit(cluster, folder)
        for _ in range(number):
            for shape, slurm in SHAPES.items():
                losses[shape].append(_lose(kit, folder / "bench.yaml", slurm))
                cluster.restart()
    return [
        rounds.seconds(
            f"a node loses power, {shape}: {what} ({CONF})",
            [each[name] for each in times],
            target if shape != "no spare node, a requeue" else None,
        )
        for shape, times in losses.items()
        for name, what, target in (
            ("detection", "to the end of the attempt", None),
            ("start", "from there to the next step", Target("<=", 25)),
        )
    ]


def _lose(kit: Kit, config: Path, slurm: dict[str, int | str]) -> dict[str, float]:
    """Switch the second node of a run off; return the seconds until it trains again."""
    config.write_text(yaml.safe_dump(SPEC | {"slurm": slurm | {"time": "1:00:00"}}), "utf-8")
    run = kit.submit(config)

    def first_steps(attempt: int) -> list[float]:
        return [e["t"] for e in run.events("first_step") if e["attempt"] == attempt]

    wait_for(lambda: run.events("save"), "no checkpoint", LIMIT_S)
    wait_for(lambda: len(first_steps(1)) == 2, "no first step", LIMIT_S)
    node = kit.cluster.nodes[1]
    lost = time.time()
    kit.cluster.power_off(node)
    steps = wait_for(lambda: first_steps(2), "no attempt after the loss", LIMIT_S)
    ended = run.attempts()[0]["times"]["stop"]
    kit.jobs("cancel", run.dir.path)
    return {"detection": ended - lost, "start": max(steps) - ended}
