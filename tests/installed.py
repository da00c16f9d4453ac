"""The kit as pip installs it from a wheel, and a repository of a user that is not the kit's."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.checkout import copy_checkout

# The user's packages have the names of the kit's folders.
FILES = {
    "jobs/__init__.py": "",
    "jobs/nets.py": """\
import slurm_job_kit
from torch import nn


def net(hidden: int) -> nn.Module:
    print("kit", slurm_job_kit.__file__)
    return nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 2))
""",
    "trainer/__init__.py": "",
    "trainer/points.py": """\
import torch
from slurm_job_kit.trainer.api import Samples


def points(num: int) -> tuple[Samples, Samples]:
    inputs = torch.linspace(-1, 1, 2 * num).reshape(num, 2)
    labels = (inputs.sum(dim=1) > 0).long()
    return Samples(inputs, labels), Samples(inputs, labels)
""",
    "specs/mine.yaml": """\
name: mine
slurm: {nodes: 2}
train:
  model: jobs.nets:net
  model_args: {hidden: 8}
  dataset: trainer.points:points
  dataset_args: {num: 64}
  epochs: 3
  micro_batch_size: 8
""",
}


def install(folder: Path) -> Path:
    """Build a wheel of this checkout and install it into a new environment; returns its `kit`.

    The environment takes all other packages from the one that runs the tests.
    """
    copy_checkout(folder / "source")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = ("wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={folder}/wheel")
    _run(*pip, *build, folder / "source")
    environment = folder / "environment"
    _run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin/python"
    [wheel] = (folder / "wheel").iterdir()
    _run(*pip, f"--python={python}", "install", "--no-deps", "--no-index", wheel)
    name = f"python{sysconfig.get_python_version()}"
    link = environment / "lib" / name / "site-packages/packages-of-the-tests.pth"
    link.write_text(f"{sysconfig.get_path('purelib')}\n")
    return environment / "bin/kit"


def make_repository(folder: Path) -> Path:
    """Write a git repository with the user's packages and one spec; returns its top."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    _run("git", "-C", folder, "init", "--quiet")
    return folder


def _run(*words: str | Path) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}:\n{done.stdout}{done.stderr}"
