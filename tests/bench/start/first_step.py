"""B3: seconds to the first optimizer step, two nodes with one rank each on this machine."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import time
from typing import Any

from slurm_job_kit.jobs.node.rendezvous import choose_port
from tests.bench.rounds import Figure, Target, interleaved, ratio
from tests.bench.start.local_run import LIMIT_S, REPOSITORY, LocalRun, environment

ROUNDS = 7
SPEC = {
    "train": {
        "model": "mini_resnet",
        "model_args": {"channels": [16, 32], "blocks_per_stage": 1},
        "dataset": "digits",
        "max_steps": 1,
    }
}
# The events of a rank, in their order; each phase is from the event before it.
PHASES = ("start", "import", "rendezvous", "preflight", "init", "data", "model", "loaded")
BARE = Path(__file__).with_name("bare_script.py")


def measure(folder: Path) -> list[Figure]:
    """Seconds from the start of the agents, of torchrun there, to the step of the slower rank.

    The kit's time begins where the frozen run is ready, so it includes `attempt.open`. In it the
    kit tests the node and reads the run directory, which the script does not.
    """
    numbers = itertools.count()
    phases: list[dict[str, float]] = []
    whole_s: list[float] = []
    bare_phases: list[dict[str, float]] = []

    def kit() -> float:
        with LocalRun(folder / str(next(numbers)), SPEC) as run:
            run.wait()
        frozen = run.events("submit", None)["freeze"]["t"]
        ranks = run.ranks_with("first_step", 1)
        first_step = max(each["first_step"]["t"] for each in ranks)
        phases.append(_phases(frozen, max(ranks, key=lambda each: each["first_step"]["t"])))
        whole_s.append(first_step - run.begun)
        return float(first_step - frozen)

    def bare() -> float:
        began, last = _bare(f"bare-{next(numbers)}")
        order = ("start", "import", "rendezvous", "first_step")
        times = [began, *(last[name] for name in order)]
        differences = (b - a for a, b in itertools.pairwise(times))
        bare_phases.append(dict(zip(order, differences, strict=True)))
        return last["first_step"] - began

    times = interleaved({"kit": kit, "bare": bare}, ROUNDS)
    figure = ratio(
        f"2 nodes x 1 rank: kit / two torchrun (c10d) with a bare script "
        f"({median(times['kit']):.2f} / {median(times['bare']):.2f} s; from the submit command "
        f"{median(whole_s):.2f} s). The kit also tests the node and reads its checkpoints",
        *(times["kit"], times["bare"], Target("<=", 0.75)),
    )
    figure.detail.update(
        phases_s=_medians(phases), bare_phases_s=_medians(bare_phases), from_submit_s=whole_s
    )
    return [figure]


def _phases(frozen: float, events: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Seconds of each phase of a rank; `spawn` has all from the frozen run to the rank's start."""
    names = [name for name in ("spawn", *PHASES, "first_step") if name in events]
    times = [frozen, *(events[name]["t"] for name in names)]
    return {name: b - a for name, (a, b) in zip(names, itertools.pairwise(times), strict=True)}


def _medians(phases: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(median(each[name] for each in phases), 3) for name in phases[0]}


def _bare(run_id: str) -> tuple[float, dict[str, float]]:
    """When two agents of torchrun were started, and the times of the slower rank."""
    torchrun = ["-m", "torch.distributed.run", "--rdzv-backend=c10d", "--nnodes=2"]
    endpoint = f"127.0.0.1:{choose_port(run_id, 1)}"
    options = [f"--rdzv-endpoint={endpoint}", f"--rdzv-id={run_id}", "--local-addr=127.0.0.1"]
    command = [sys.executable, *torchrun, *options, "--nproc-per-node=1", str(BARE)]
    env = environment(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", PATH=os.environ["PATH"])
    began = time()
    agents = [
        subprocess.Popen(
            command, cwd=REPOSITORY, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        for _ in range(2)
    ]
    outputs = [agent.communicate(timeout=LIMIT_S)[0] for agent in agents]
    starts = [json.loads(output.splitlines()[-1]) for output in outputs]
    return began, max(starts, key=lambda each: each["first_step"])
