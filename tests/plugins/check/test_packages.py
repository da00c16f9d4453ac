"""Missing Python packages are named before a job is queued."""

import importlib.util

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.base.errors import UserError
from slurm_job_kit.jobs.contract.spec import Launch, Log, Spec, Train
from slurm_job_kit.jobs.plugins.check import hooks
from slurm_job_kit.jobs.runs import lookup


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
    assert error.endswith(
        "has no safetensors, scikit-learn (extra train, examples of slurm-job-kit)"
    )
    assert hint.endswith(" -m pip install safetensors scikit-learn")
    assert lookup.all_runs() == []


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        (Spec(launch=Launch(script="x.py")), "torch"),
        (
            Spec(train=Train(dataset="image_folder"), log=Log(trackers=["mlflow", "my:Own"])),
            "torch, numpy, safetensors, pillow, mlflow-skinny",
        ),
    ],
)
def test_a_run_needs_the_packages_that_its_spec_uses(spec, names, without):
    without("torch", "numpy", "safetensors", "PIL", "mlflow")
    with pytest.raises(UserError, match=f" has no {names} \\(extra "):
        hooks.check_packages(spec)


@pytest.mark.parametrize(
    "spec",
    [
        Spec(setup=["module load python"]),
        Spec(launch=Launch(command_prefix=["apptainer"])),
        Spec(launch=Launch(python="/only/on/the/nodes/bin/python")),
    ],
)
def test_what_only_a_node_can_find_out_is_not_checked_here(spec, without):
    without("torch", "numpy")
    hooks.check_packages(spec)
