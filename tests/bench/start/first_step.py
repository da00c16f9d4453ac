"""B3: seconds to the first optimizer step, two nodes with one rank each on this machine."""

import itertools
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import time

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
BARE = Path(__file__).with_name("bare_script.py")


def measure(folder: Path) -> list[Figure]:
    """Seconds from the start of the agents, of torchrun there, to the step of the slower rank.

    The kit's time begins where the frozen run is ready, so it includes `attempt.open`. In it the
    kit tests the node and reads the run directory, which the script does not.
    """
    numbers = itertools.count()
    whole_s: list[float] = []

    def kit() -> float:
        with LocalRun(folder / str(next(numbers)), SPEC) as run:
            run.wait()
        frozen = run.events("submit", None)["freeze"]["t"]
        ranks = run.ranks_with("first_step", 1)
        first_step = max(each["first_step"]["t"] for each in ranks)
        whole_s.append(first_step - run.begun)
        return float(first_step - frozen)

    def bare() -> float:
        return _bare_s(f"bare-{next(numbers)}")

    times = interleaved({"kit": kit, "bare": bare}, ROUNDS)
    figure = ratio(
        f"2 nodes x 1 rank: kit / two torchrun (c10d) with a bare script "
        f"({median(times['kit']):.2f} / {median(times['bare']):.2f} s; from the submit command "
        f"{median(whole_s):.2f} s). The kit also tests the node and reads its checkpoints",
        *(times["kit"], times["bare"], Target("<=", 0.75)),
    )
    figure.detail["from_submit_s"] = whole_s
    return [figure]


def _bare_s(run_id: str) -> float:
    """Seconds from the start of two agents of torchrun to the first step of the slower rank."""
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
    return max(float(output.splitlines()[-1]) for output in outputs) - began
