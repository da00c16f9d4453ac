"""B1: seconds until a job is submitted."""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.rounds import Figure, Target, interleaved, milliseconds, ratio
from tests.bench.start.local_run import REPOSITORY, environment

# As in submitit's guide: the function to run stands in the script, which imports what it needs.
SCRIPT = """
import sys
import torch
import submitit

def train():
    return torch.zeros(1)

executor = submitit.SlurmExecutor(sys.argv[1])
executor.update_parameters(nodes=2, time=60)
print(executor.submit(train).job_id)
"""
SPEC = "name: bench\nslurm: {nodes: 2}\n"
FAKE = "fake Slurm clients"
KIT_DIFFERS = "the kit also freezes the code"
LIMIT_S = 120
SBATCH = """#!/bin/sh
case "$*" in *--parsable*) echo 4711 ;; *) echo 'Submitted batch job 4711' ;; esac
"""
NO_ANSWER = "#!/bin/sh\nexit 1\n"


def measure(folder: Path) -> list[Figure]:
    """Seconds of each command from its start to its end; only Slurm's clients are fakes."""
    env, numbers = fake_slurm(folder / "bin"), itertools.count()
    script, config = folder / "script.py", folder / "bench.yaml"
    script.write_text(SCRIPT, encoding="utf-8")
    config.write_text(SPEC, encoding="utf-8")
    jobs = [sys.executable, "-m", "jobs", "submit", str(config), "--cluster", "slurm", "--no-check"]

    def kit() -> float:
        return seconds(jobs, {**env, "KIT_RUNS": str(folder / "runs")})

    def submitit() -> float:
        return seconds([sys.executable, script, folder / f"submitit-{next(numbers)}"], env)

    times = interleaved({"kit": kit, "submitit": submitit})
    own = milliseconds(times["kit"])
    what = f"submitit from a script that imports torch / kit submit --no-check ({own}; {FAKE})"
    target = Target(">=", 7)
    return [ratio(f"{what}; {KIT_DIFFERS}", times["submitit"], times["kit"], target)]


def fake_slurm(folder: Path) -> dict[str, str]:
    """The environment of a user on a machine whose Slurm takes each job and does nothing."""
    folder.mkdir()
    clients = {"sbatch": SBATCH} | dict.fromkeys(
        ("srun", "scontrol", "squeue", "sinfo", "scancel"), NO_ANSWER
    )
    for name, text in clients.items():
        (folder / name).write_text(text, encoding="ascii")
        (folder / name).chmod(0o755)
    return environment(PATH=f"{folder}:{os.environ['PATH']}")


def seconds(command: Sequence[str | Path], env: Mapping[str, str]) -> float:
    """The seconds that a command takes. Raises: RuntimeError with its output if it fails."""
    began = time.perf_counter()
    done = subprocess.run(
        command, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=LIMIT_S
    )
    took_s = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{command} failed:\n{done.stdout}{done.stderr}")
    return took_s
