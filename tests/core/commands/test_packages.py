"""Missing Python packages are named before a job is queued."""

import importlib.util
import sys

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.commands import packages
from slurm_job_kit.jobs.contract.spec import Launch, Log, Slurm, Spec, Train
from slurm_job_kit.jobs.node.__main__ import OLDEST
from slurm_job_kit.jobs.runs import lookup
from tests.core.run_files import REPOSITORY, kit


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
    assert hint.endswith(" -m pip install safetensors scikit-learn")
    assert lookup.all_runs() == []


def test_without_the_packages_of_the_commands_all_needed_ones_are_named_at_once(here):
    done = kit("submit", "tiny.yaml", python=[sys.executable, "-S"])  # -S: no site-packages
    assert done.returncode == 2
    for name in ("pyyaml", "submitit", "torch", "numpy", "safetensors"):
        assert name in done.stderr
    assert "Traceback" not in done.stderr and "requirements.lock" not in done.stderr


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        (Spec(launch=Launch(script="x.py")), {"torch"}),
        (Spec(train=Train(dataset="image_folder")), {*packages.TRAINER, "pillow"}),
        (Spec(train=Train(dataset="python_source")), set(packages.TRAINER)),
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


def test_the_oldest_python_is_that_of_the_project():
    text = (REPOSITORY / "pyproject.toml").read_text()
    assert f'requires-python = ">={".".join(map(str, OLDEST))}"' in text
