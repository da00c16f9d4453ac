"""B13: a requeue on a real Slurm: from the warning to the stop, and from the start to a step."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from slurm_job_kit.jobs.base.files import read_jsonl
from tests.bench import rounds
from tests.bench.checkpoint import wide
from tests.bench.rounds import Figure, Target
from tests.core.waiting import wait_for
from tests.slurm.cluster import Cluster
from tests.slurm.kit import Kit, Run

REQUEUES = 5
WIDTH = 880  # 12.5 million parameters; 100 MB with the momentum
SPEC = {
    "name": "bench",
    "slurm": {"nodes": 2, "time": "1:00:00"},
    "train": {
        "model": f"{wide.__name__}:{wide.sixteen_layers.__name__}",
        "model_args": {"width": WIDTH},
        "dataset": "digits",
        "micro_batch_size": 4,
        "lr": 1e-3,
        "max_steps": 1_000_000,
        "eval_every_epochs": None,
    },
}
CHECK_INTERVAL_S = 0.05  # of the stop agreement, at the automatic interval


@contextmanager
def cluster_of(nodes: int, extra_conf: str = "") -> Iterator[Cluster]:
    """A real Slurm of so many nodes, whose folder is deleted afterwards."""
    root = Path(f"/tmp/slurm-bench-{os.getpid()}")  # short, for the unix sockets in it
    try:
        with Cluster(root, nodes=nodes, extra_conf=extra_conf) as cluster:
            yield cluster
    finally:
        shutil.rmtree(root, ignore_errors=True)


def measure(folder: Path) -> list[Figure]:
    """Seconds by the run's own timeline and slurmd's log, on a cluster of two nodes.

    What Slurm does is not in it, but for srun, which starts the agents.
    """
    config = folder / "bench.yaml"
    config.write_text(yaml.safe_dump(SPEC), encoding="utf-8")
    with cluster_of(2) as cluster:
        kit = Kit(cluster, folder)
        run = kit.submit(config)
        trips = [_round_trip(run, each) for each in range(1, rounds.sized(REQUEUES, 2) + 1)]
        kit.jobs("cancel", run.dir.path)
    stops, starts = zip(*trips, strict=True)
    return [
        rounds.seconds(
            "requeue, 100 MB: the warning reaches an agent to all ranks have stopped",
            *(stops, Target("<=", CHECK_INTERVAL_S + 0.05)),
        ),
        rounds.seconds(
            "requeue, 100 MB: slurmd starts the batch script to the first new step",
            *(starts, Target("<=", 4)),
        ),
    ]


def _round_trip(run: Run, attempt: int) -> tuple[float, float]:
    """Warn an attempt, and wait for a step of the next one; seconds of the stop and the start."""
    _wait_for(run, "first_step", attempt)
    run.cluster.run("scancel", "--signal=USR1", run.job_id)
    stopped = _wait_for(run, "stop_seen", attempt)
    steps = _wait_for(run, "first_step", attempt + 1)
    agents = [read_jsonl(run.dir.timeline(f"agent-{rank:05d}")) for rank in (0, 1)]
    warned = min(_time(agent, "signal", attempt) for agent in agents)
    return max(stopped) - warned, max(steps) - _launches(run)[attempt]


def _wait_for(run: Run, name: str, attempt: int) -> list[float]:
    """When both ranks recorded an event of an attempt; waits until they have."""

    def found() -> list[float]:
        times = [each["t"] for each in run.events(name) if each["attempt"] == attempt]
        return times if len(times) == 2 else []

    times: list[float] = wait_for(found, f"no {name} of attempt {attempt}")
    return times


def _time(events: list[dict[str, Any]], name: str, attempt: int) -> float:
    return float(
        next(each["t"] for each in events if (each["event"], each["attempt"]) == (name, attempt))
    )


def _launches(run: Run) -> list[float]:
    """When slurmd started the batch script of the job, each time, in seconds since the epoch."""
    times = []
    for path in run.cluster.root.glob("log/*"):
        pattern = rf"^\[(\S+)\].*[Ll]aunching batch job {run.job_id}\b"
        text = path.read_text(encoding="utf-8", errors="replace")
        times += re.findall(pattern, text, re.M)
    return sorted(datetime.fromisoformat(text).timestamp() for text in times)
