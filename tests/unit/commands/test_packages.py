"""Missing Python packages are named before a job is queued; an installation shows its output."""

import importlib.util
import os
import subprocess
import sys

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.commands import packages
from slurm_job_kit.jobs.errors import UserError
from slurm_job_kit.jobs.node.__main__ import OLDEST
from slurm_job_kit.jobs.runs import lookup
from slurm_job_kit.jobs.spec import Launch, Log, Slurm, Spec, Train
from tests.unit.run_files import REPOSITORY


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
    for name in ("pyyaml", "submitit", "torch", "numpy", "safetensors"):
        assert name in done.stderr
    assert "Traceback" not in done.stderr and "requirements.lock" not in done.stderr


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        (Spec(launch=Launch(script="x.py")), {"torch"}),
        (Spec(train=Train(dataset="image_folder")), {*packages.TRAINER, "pillow"}),
        (Spec(train=Train(dataset="synthetic_images")), set(packages.TRAINER)),
        (
            Spec(train=Train(dataset="cifar10"), log=Log(tensorboard=True, wandb="offline")),
            {*packages.TRAINER, "tensorboard", "wandb"},
        ),
    ],
)
def test_a_run_needs_the_packages_that_its_spec_uses(spec, names):
    assert set(packages.needed_packages(spec)) == names


@pytest.mark.parametrize(
    "spec",
    [
        Spec(setup=["module load python"]),
        Spec(launch=Launch(command_prefix=["apptainer"])),
        Spec(slurm=Slurm(srun_args=["--container-image=x"])),
        Spec(launch=Launch(python="python3.12")),
        Spec(launch=Launch(python="/only/on/the/nodes/bin/python")),
        Spec(launch=Launch(python="/bin/no-such", command_prefix=["apptainer"])),
    ],
)
def test_what_only_a_node_can_find_out_is_not_checked_here(spec, without):
    without("torch", "numpy")
    packages.check(spec, is_on_slurm=False)


@pytest.fixture
def interpreter(tmp_path):
    """`interpreter(script)`: a stand-in for launch.python; its spec."""

    def made(script):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        return Spec(launch=Launch(python=str(python)))

    return made


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 3.6", "is Python 3.6, and agents and ranks need 3.11 or newer\n  hint: "),
        ("echo 3.11; echo torch; echo sklearn", "has no torch, scikit-learn\n  hint: "),
        ("echo no >&2; exit 1", "is no working Python: no\n  hint: "),
        ("echo Usage: x", "is no working Python: exit code 0"),
    ],
)
def test_launch_python_is_checked_in_place_of_the_interpreter_that_submits(
    interpreter, without, script, message
):
    without("torch")
    spec = interpreter(script)
    with pytest.raises(UserError) as refused:
        packages.check(spec, is_on_slurm=False)
    assert f"launch.python: {spec.launch.python} {message}" in str(refused.value)
    packages.check(interpreter("echo 3.11"), is_on_slurm=False)


def test_the_packages_are_looked_up_in_launch_python(interpreter, tmp_path):
    """It has the packages of this Python; with -S it has none."""
    for option, is_complete in (("", True), ("-S", False)):
        spec = interpreter(f'exec {sys.executable} {option} "$@"')
        if is_complete:
            packages.check(spec, is_on_slurm=False)
        else:
            with pytest.raises(UserError, match="has no torch, numpy, safetensors"):
                packages.check(spec, is_on_slurm=False)


def test_a_launch_python_that_is_missing_in_a_folder_of_this_machine_is_named(tmp_path):
    spec = Spec(launch=Launch(python=str(tmp_path / "pyhton")))
    with pytest.raises(UserError, match="launch.python: .*/pyhton is no program"):
        packages.check(spec, is_on_slurm=False)


def test_the_oldest_python_is_that_of_the_project():
    text = (REPOSITORY / "pyproject.toml").read_text()
    assert f'requires-python = ">={".".join(map(str, OLDEST))}"' in text


def test_every_package_has_a_minimum_version():
    names = {*packages.COMMANDS, *packages.TRAINER, *packages.DATASETS.values()}
    assert all(">=" in line for line in packages.requirements(names))


@pytest.mark.slow
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
