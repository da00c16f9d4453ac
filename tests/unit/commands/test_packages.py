"""Missing Python packages are named before a job is queued; an installation shows its output."""

import importlib.util
import os
import subprocess
import sys

import pytest

from jobs.__main__ import main
from jobs.commands import packages
from jobs.runs import lookup
from jobs.spec import Launch, Log, Slurm, Spec, Train
from tests.unit.commands.commands_kit import REPOSITORY


@pytest.fixture
def without(monkeypatch):
    """`without(name, ...)`: hide installed packages from the look-up."""
    find = importlib.util.find_spec

    def hide(*names):
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: None if name in names else find(name)
        )

    return hide


def test_submit_names_every_missing_package_and_leaves_torch_alone(here, without, capsys):
    without("safetensors", "sklearn")
    assert main(["submit", "tiny.yaml", "train.dataset=digits", "--cluster", "local"]) == 2
    error, hint = capsys.readouterr().err.splitlines()[-2:]
    assert error.endswith("has no safetensors, scikit-learn")
    assert hint.startswith(f"  hint: {sys.executable} -m pip install ")
    assert "'safetensors>=" in hint and "'scikit-learn>=" in hint
    assert "torch" not in hint and "lock" not in hint
    assert lookup.all_runs() == []


def test_without_the_packages_of_the_commands_all_needed_ones_are_named_at_once(here):
    argv = [sys.executable, "-S", "-m", "jobs", "submit", "tiny.yaml"]  # -S: no site-packages
    env = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    for name in ("pyyaml", "pydantic", "submitit", "torch", "numpy", "safetensors"):
        assert name in done.stderr
    assert "Traceback" not in done.stderr and "requirements.lock" not in done.stderr


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        (Spec(launch=Launch(script="x.py")), {"torch"}),
        (Spec(setup=["module load python"]), set()),
        (Spec(launch=Launch(command_prefix=["apptainer"])), set()),
        (Spec(slurm=Slurm(srun_args=["--container-image=x"])), set()),
        (Spec(train=Train(dataset="image_folder")), {*packages.TRAINER, "pillow"}),
        (Spec(train=Train(dataset="synthetic_images")), set(packages.TRAINER)),
        (
            Spec(train=Train(dataset="cifar10"), log=Log(tensorboard=True, wandb="offline")),
            {*packages.TRAINER, "tensorboard", "wandb"},
        ),
    ],
)
def test_a_run_needs_the_packages_that_its_spec_uses_here(spec, names):
    assert set(packages.needed(spec)) - set(packages.COMMANDS) == names


def test_every_package_has_a_minimum_version():
    names = {*packages.COMMANDS, *packages.TRAINER, *packages.DATASETS.values()}
    assert all(">=" in line for line in packages.requirements(names))


def test_an_installation_prints_what_pip_downloads(tmp_path, capfd):
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "pip: $*"\nexit 3\n')
    python.chmod(0o755)
    assert packages.install(tmp_path / "x.lock", tmp_path / "venv") == 3
    printed = capfd.readouterr().out
    assert str(tmp_path / "x.lock") in printed and "--quiet" not in printed


@pytest.mark.slow
def test_a_new_environment_is_announced_with_its_size(tmp_path, capfd):
    lock = tmp_path / "x.lock"
    lock.write_text("# nothing\n")
    assert packages.install(lock, tmp_path / "venv") == 0
    assert "GB" in capfd.readouterr().out
