"""Commands as a user types them, and the fakes of Slurm's clients that answer them."""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.start.local_run import REPOSITORY, environment

LIMIT_S = 120
SBATCH = """#!/bin/sh
case "$*" in *--parsable*) echo 4711 ;; *) echo 'Submitted batch job 4711' ;; esac
"""
NO_ANSWER = "#!/bin/sh\nexit 1\n"


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


def seconds(
    command: Sequence[str | Path], env: Mapping[str, str], where: Path = REPOSITORY
) -> float:
    """The seconds that a command takes. Raises: RuntimeError with its output if it fails."""
    began = time.perf_counter()
    done = subprocess.run(
        command, cwd=where, env=env, capture_output=True, text=True, timeout=LIMIT_S
    )
    took_s = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{command} failed:\n{done.stdout}{done.stderr}")
    return took_s
