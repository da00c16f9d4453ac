"""The check of a run's parts before the queue: which mistakes are errors, which are warnings."""

import dataclasses
import importlib
import sys

import pytest

from slurm_job_kit.jobs.config.load import load
from slurm_job_kit.jobs.contract.problems import dotted
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Launch, Log, Spec, Train
from slurm_job_kit.trainer.plugins.check.__main__ import build_parts, problem_of
from tests.core.run_files import REPOSITORY

DATA = Train(dataset="tests.parts:images", dataset_args={"num_train": 64, "num_test": 16})
OWN = """
import torch
from torch import nn
from slurm_job_kit.trainer.api import Samples, Sums

class Net(nn.Module):
    def __init__(self, hidden=4, classes=10):
        super().__init__()
        self.a = nn.Linear(8 * 8, hidden)
        self.b = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.b(self.a(x.flatten(1)))

def objective(model, batch, scale=1.0):
    loss = scale * model(batch[0]).sum()
    return Sums(loss, len(batch[0]), {"size": loss.detach()})

def optimizer(params, lr, beta=0.9):
    return torch.optim.SGD(params, lr=lr)

def schedule(step, total_steps, power=1):
    return (1 - step / total_steps) ** power

def transform(amount=1.0):
    return lambda inputs, random: inputs * amount
"""


@pytest.fixture
def check(tmp_path, monkeypatch):
    """`check(train, code)`: the error of a run whose frozen code has a module `mine`."""
    run = RunDir(tmp_path / "run")
    run.code.mkdir(parents=True)
    monkeypatch.chdir(run.code)
    monkeypatch.syspath_prepend(str(run.code))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def found(train, code=OWN, world_size=2, is_here=False, **sections):
        (run.code / "mine.py").write_text(code)
        importlib.invalidate_caches()
        sys.modules.pop("mine", None)
        sections = {"launch": Launch(nproc_per_node=world_size), **sections}
        spec = Spec(train=train, **sections)
        try:
            build_parts(run, spec)
        except (Exception, SystemExit) as error:
            met = problem_of(error, spec, is_here)
            level = "error" if met.is_error else "warning"
            text = "\n".join([met.what, *met.frames, met.hint])
            return level, dotted(met.path), text
        return None

    yield found
    sys.modules.pop("mine", None)


def of(train=DATA, **keys):
    return dataclasses.replace(train, **keys)


@pytest.mark.parametrize(
    "name", ["resnet", "s1", "cancer", "own_parts", "own_objective", "own_stream"]
)
def test_nothing_is_found_in_the_examples(check, name):
    spec = load(REPOSITORY / f"configs/{name}.yaml").spec
    sections = {"slurm": spec.slurm, "launch": spec.launch, "checkpoint": spec.checkpoint}
    assert check(spec.train, **sections) is None


def test_a_tracker_that_cannot_be_imported_is_an_error(check):
    level, where, text = check(DATA, log=Log(trackers=["mine:nothing"]))
    assert (level, where) == ("error", "log.trackers") and "no attribute 'nothing'" in text


OWN_PARTS = {
    "model": "mine:Net",
    "objective": "mine:objective",
    "optimizer": "mine:optimizer",
    "schedule": "mine:schedule",
    "transform": "mine:transform",
}


@pytest.mark.parametrize("key", [*OWN_PARTS, "collate", "dataset"])
def test_a_name_that_the_module_lacks_is_an_error(check, key):
    level, where, text = check(of(**{key: "mine:nothing"}))
    assert (level, where) == ("error", f"train.{key}") and "no attribute 'nothing'" in text


def test_a_missing_package_is_an_error_only_with_the_packages_of_the_ranks(check):
    train, code = of(model="mine:Net"), "import no_such_package\n"
    level, where, text = check(train, code)
    assert (level, where) == ("error", "train.model")
    assert "mine.py:1" in text and "No module named 'no_such_package'" in text
    assert check(train, code, setup=["module load x"])[0] == "warning"


def test_a_syntax_error_is_shown_with_its_line(check):
    level, where, text = check(of(model="mine:Net"), "x = 1\ndef net(:\n")
    assert (level, where) == ("error", "train.model") and "mine.py:2: def net(:" in text


@pytest.mark.parametrize("key", ["model", "transform", "optimizer"])
def test_an_argument_that_does_not_exist_is_an_error(check, key):
    level, where, text = check(of(**{key: OWN_PARTS[key], f"{key}_args": {"hiden": 3}}))
    assert level == "error" and where.startswith(f"train.{key}") and "hiden" in text


def test_files_that_only_the_nodes_may_have_are_a_warning(check):
    train = of(dataset="image_folder", dataset_args={"path": "/no/such/folder"})
    assert check(train)[:2] == ("warning", "train.dataset_args.path")
    assert check(train, is_here=True)[0] == "error"  # a local run
    train = of(dataset="mine:data", dataset_args={})
    level, where, text = check(train, "def data():\n    open('/no/such/x.csv')\n")
    assert (level, where) == ("warning", "train.dataset")
    assert "mine.py:2, in data: open(" in text
    assert check(train, "def data():\n    return [], None\n")[0] == "warning"


def test_code_that_needs_a_gpu_is_a_warning_with_the_users_frames(check):
    code = OWN.replace("        self.a = ", "        torch.zeros(1).cuda()\n        self.a = ")
    level, where, text = check(of(model="mine:Net"), code)
    assert (level, where) == ("warning", "train.model")
    assert "in __init__: torch.zeros(1).cuda()" in text and "trainer/" not in text


@pytest.mark.parametrize("error", ["KeyError('SLURM_JOB_ID')", "SystemExit(3)", "TypeError('x')"])
def test_what_own_code_raises_may_depend_on_the_host(check, error):
    train = of(dataset="mine:data", dataset_args={})
    assert check(train, f"def data():\n    raise {error}\n")[0] == "warning"


def test_a_batch_above_the_training_set_is_an_error(check):
    train = of(micro_batch_size=16)
    assert check(train, world_size=4) is None
    level, where, text = check(train, world_size=8)
    assert (level, where) == ("error", "train.micro_batch_size") and "128" in text
