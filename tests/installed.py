"""The kit as pip installs it from a wheel, and a repository of a user that is not the kit's."""

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


# What the kit alone needs, with what these need, as their files begin.
NEEDED = ("submitit", "cloudpickle", "typing_extensions", "yaml", "_yaml", "pyyaml")


def install(folder: Path, is_editable: bool = False, is_alone: bool = False) -> Path:
    """Install a copy of this checkout into a new environment; returns its command `kit`.

    By a wheel, or as editable. The environment takes all other packages from the one that runs the
    tests; is_alone: only those that the kit cannot do without.
    """
    copy_checkout(folder / "source")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    environment = folder / "environment"
    _run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin/python"
    name = f"python{sysconfig.get_python_version()}"
    packages = environment / "lib" / name / "site-packages"
    for each in Path(sysconfig.get_path("purelib")).iterdir() if is_alone else ():
        if each.name.lower().startswith(NEEDED):
            (packages / each.name).symlink_to(each)
    if not is_alone:
        (packages / "packages-of-the-tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    options = ("--no-deps", "--no-build-isolation")
    into = (*pip, f"--python={python}", "install", *options)
    if is_editable:
        _run(*into, "--editable", folder / "source")
        return environment / "bin/kit"
    _run(*pip, "wheel", *options, f"--wheel-dir={folder}/wheel", folder / "source")
    [wheel] = (folder / "wheel").iterdir()
    _run(*into, "--no-index", wheel)
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
