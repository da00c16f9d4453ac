"""The trainings of other_trainers/ by an installed kit, and an undisturbed one to compare."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from slurm_job_kit.jobs.base.files import read_jsonl
from slurm_job_kit.jobs.contract.rundir import RunDir

SCRIPTS = Path(__file__).with_name("other_trainers")
PACKAGES = {
    "transformers": "transformers",
    "lightning": "lightning",
    "fabric": "lightning",
    "accelerate": "accelerate",
}
FINAL = "final.pt"


def skip_without(library: str) -> None:
    """Skip the test where the library is not installed."""
    package = PACKAGES[library]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install -r requirements-dev.lock")


def make_repository(folder: Path, library: str, nodes: int, pace: Path) -> Path:
    """Write a repository with the scripts, and a spec for one rank on each node; returns it.

    pace: a file with the seconds that each step takes.
    """
    shutil.copytree(SCRIPTS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    launch = f"{{script: train_{library}.py, stop_signal: TERM, env: {{PACE_FILE: {pace}}}}}"
    spec = f"name: other\nslurm: {{nodes: {nodes}}}\nlaunch: {launch}\n"
    (folder / "other.yaml").write_text(spec)
    subprocess.run(["git", "-C", folder, "init", "--quiet"], check=True)
    return folder


def check_against_undisturbed(
    run: RunDir, python: Path, library: str, folder: Path, ranks: int
) -> None:
    """Check that a run ended with the bits of a training by plain torchrun, in a new folder.

    And that each attempt took the same samples. python: the interpreter that has the kit.
    """
    folder.mkdir()
    foreign = ("KIT_", "SLURM_", "PYTHONPATH")
    env = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    torchrun = (python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    done = subprocess.run(
        [*torchrun, SCRIPTS / f"train_{library}.py"],
        cwd=folder,
        env=env | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first_steps = {each["attempt"]: each["first_step"] for each in read_jsonl(run.attempts)}
    for attempt, first_step in first_steps.items():
        for rank in range(ranks):
            taken = samples(run.work, attempt, rank)
            expected = samples(folder, 0, rank)[first_step - 1 :]
            assert taken and taken == expected[: len(taken)], (attempt, rank)
    assert len(taken) == len(expected)
    ours, theirs = (torch.load(each / FINAL, weights_only=True) for each in (run.work, folder))
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def samples(folder: Path, attempt: int, rank: int) -> list[str]:
    """Return the samples of each step that a rank took in an attempt, 0 without the kit."""
    file = folder / f"samples-{attempt}-{rank}.txt"
    return file.read_text().splitlines() if file.exists() else []


def pid_of(run: RunDir, attempt: int, rank: int) -> int:
    """Return the pid that a rank has printed."""
    return int(run.attempt(attempt).rank_log(rank).read_text().rpartition("pid ")[2].split()[0])
