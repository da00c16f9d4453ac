"""B3: seconds from the SIGKILL of a rank to the next optimizer step, two nodes on this machine."""

import itertools
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_job_kit.jobs.base.files import read_jsonl
from tests.bench import rounds
from tests.bench.rounds import Figure, Target
from tests.bench.start.local_run import LocalRun
from tests.core.waiting import wait_for


@dataclass(frozen=True)
class Case:
    """A training, the size of its state, and how often one of its ranks is killed."""

    title: str
    train: dict[str, Any]
    save_every_steps: int
    num_kills: int
    target: Target


CASES = (
    Case(
        "small MLP",
        {"model": "mlp", "dataset": "digits", "micro_batch_size": 8, "epochs": 1_000_000},
        *(500, 7, Target("<=", 5)),
    ),
    Case(
        "GPT of 78 M parameters, 0.94 GB of state",
        {
            "objective": "language_model",
            "model": "gpt",
            "dataset": "python_source",
            "model_args": {"n_layer": 11, "n_head": 12, "n_embd": 768},
            "dataset_args": {"block_size": 16, "max_bytes": 200_000},
            "micro_batch_size": 1,
            "optimizer": "adamw",
            "lr": 1e-4,
            "max_steps": 1_000_000,
        },
        *(10, 5, Target("<=", 9)),
    ),
)


def measure(folder: Path) -> list[Figure]:
    """Seconds until both ranks have done a step again, by their own records.

    Each kill comes after a checkpoint of the attempt.
    """
    return [_figure(folder / str(number), case) for number, case in enumerate(CASES)]


def _figure(folder: Path, case: Case) -> Figure:
    spec = {
        "train": {**case.train, "eval_every_epochs": None},
        "checkpoint": {"every_steps": case.save_every_steps},
        "log": {"every_steps": 1000},
    }
    kills = rounds.sized(case.num_kills, 2)
    with LocalRun(folder, spec) as run:
        results = [_kill(run, attempt) for attempt in range(1, kills + 1)]
        run.stop()
    what = f"{case.title}: SIGKILL of a rank to the next step, {kills} kills"
    times, phases = zip(*results, strict=True)
    return rounds.seconds(what, times, case.target, phases_s=phases)


def _kill(run: LocalRun, attempt: int) -> tuple[float, dict[str, float]]:
    """Kill rank 1 of an attempt; seconds until the next one has done a step, and their phases."""
    ranks = wait_for(lambda: run.ranks_with("first_step", attempt), "no step")
    wait_for(lambda: "save" in run.events("rank-00000", attempt), "no checkpoint")
    killed = time.time()
    os.kill(ranks[1]["start"]["pid"], signal.SIGKILL)
    ranks = wait_for(lambda: run.ranks_with("first_step", attempt + 1), "no step after the kill")
    slower = max(ranks, key=lambda each: each["first_step"]["t"])
    return slower["first_step"]["t"] - killed, _phases(run, attempt, killed, slower)


def _phases(
    run: LocalRun, attempt: int, killed: float, rank: dict[str, dict[str, Any]]
) -> dict[str, float]:
    """Seconds from the kill to the end of torchrun, to the next one, and of the rank's phases."""
    agents = read_jsonl(run.dir.timeline("agent-00001"))
    began = {(each["event"], each["attempt"]): each["t"] for each in agents}
    started = began["torchrun", attempt + 1]
    # An agent that is killed because another node failed records no end.
    ended = began.get(("torchrun_end", attempt), started)
    names = ("start", "rendezvous", "data", "loaded", "first_step")
    times = [killed, ended, started, *(rank[name]["t"] for name in names)]
    differences = (round(b - a, 3) for a, b in itertools.pairwise(times))
    return dict(zip(("torchrun_end", "torchrun", *names), differences, strict=True))
