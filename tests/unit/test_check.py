"""The check of a run's parts before the queue: which mistakes are errors, which are warnings."""

import dataclasses
import importlib
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.config.load import load
from slurm_job_kit.jobs.problems import dotted
from slurm_job_kit.jobs.records.frozen import Provenance
from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.spec import Checkpoint, Launch, Slurm, Spec, Train
from slurm_job_kit.trainer.check import Check

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = Train(dataset="synthetic_images", dataset_args={"num_train": 64, "num_test": 16, "size": 8})
OWN = """
import torch
from torch import nn
from slurm_job_kit.trainer.api import Samples, Sums

class Net(nn.Module):
    def __init__(self, hidden=4, classes=10):
        super().__init__()
        self.a = nn.Linear(3 * 8 * 8, hidden)
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
    """`check(train, code)`: the findings for a run whose frozen code has a module `mine`."""
    run = RunDir(tmp_path / "run")
    run.code.mkdir(parents=True)
    (tmp_path / "checkout").mkdir()
    known = Provenance("x", None, None, "", "", "", (), repository=str(tmp_path / "checkout"))
    records.write(run.provenance, known)
    monkeypatch.chdir(run.code)
    monkeypatch.syspath_prepend(str(run.code))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def found(train, code=OWN, world_size=2, **sections):
        (run.code / "mine.py").write_text(code)
        importlib.invalidate_caches()
        for name in [name for name in sys.modules if name in ("mine", "configs.mine")]:
            del sys.modules[name]
        sections = {"launch": Launch(nproc_per_node=world_size), **sections}
        checked = Check(run, Spec(train=train, **sections))
        checked.run()
        return checked.problems

    yield found
    sys.modules.pop("mine", None)


def of(train=DATA, **keys):
    return dataclasses.replace(train, **keys)


def only(findings):
    """(error or warning, key, text) of the only finding."""
    (finding,) = findings
    level = "error" if finding.is_error else "warning"
    return level, dotted(finding.key), "\n".join([finding.what, *finding.frames, finding.hint])


@pytest.mark.parametrize(
    "name", ["resnet", "cancer", "own_parts", "own_objective", "own_stream", "regression"]
)
def test_nothing_is_found_in_the_examples(check, name):
    spec = load(REPOSITORY / f"configs/{name}.yaml").spec
    sections = {"slurm": spec.slurm, "launch": spec.launch, "checkpoint": spec.checkpoint}
    assert check(spec.train, **sections) == []


OWN_PARTS = {
    "model": "mine:Net",
    "objective": "mine:objective",
    "optimizer": "mine:optimizer",
    "schedule": "mine:schedule",
    "transform": "mine:transform",
}


def test_nothing_is_found_in_own_parts_that_fit(check):
    assert check(of(**OWN_PARTS)) == []


@pytest.mark.parametrize("key", [*OWN_PARTS, "collate", "dataset"])
def test_a_name_that_the_module_lacks_is_an_error_with_the_nearest_one(check, key):
    level, where, text = only(check(of(**{key: "mine:objectiv"})))
    assert (level, where) == ("error", f"train.{key}")
    assert "did you mean mine:objective?" in text


@pytest.mark.parametrize(("module", "hint"), [("minne", "mine?"), ("mine.parts", "")])
def test_a_module_that_the_frozen_code_lacks_is_an_error(check, module, hint):
    level, where, text = only(check(of(model=f"{module}:Net")))
    assert (level, where) == ("error", "train.model") and hint in text


def test_a_module_that_git_ignores_is_named(check, tmp_path):
    (tmp_path / "checkout/secret.py").write_text("")
    assert "git ignores secret" in only(check(of(model="secret:Net")))[2]


def test_a_missing_package_is_an_error_only_with_the_packages_of_the_ranks(check):
    train, code = of(model="mine:Net"), "import no_such_package\n"
    level, where, text = only(check(train, code))
    assert (level, where) == ("error", "train.model")
    assert "mine.py:1" in text and "pip install no_such_package" in text
    assert only(check(train, code, setup=["module load x"]))[0] == "warning"


def test_a_syntax_error_is_shown_with_its_line(check):
    level, where, text = only(check(of(model="mine:Net"), "x = 1\ndef net(:\n"))
    assert (level, where) == ("error", "train.model") and "mine.py:2: def net(:" in text


@pytest.mark.parametrize("key", ["model", "transform", "objective", "optimizer", "schedule"])
def test_an_argument_that_does_not_exist_is_an_error(check, key):
    args = {"optimizer": "optimizer_args", "schedule": "schedule_args"}.get(key, f"{key}_args")
    level, where, text = only(check(of(**{key: OWN_PARTS[key], args: {"hiden": 3}})))
    assert level == "error" and where.startswith(f"train.{key}")
    assert "hiden" in text and "its arguments: " in text


def test_a_parameter_of_a_model_of_shapes_has_its_name_in_the_error(check):
    code = "\n\ndef part(params, lr):\n    return torch.optim.SGD(params[0]['params'], lr=lr)\n"
    level, where, text = only(check(of(model="mine:Net", optimizer="mine:part"), OWN + code))
    assert (level, where) == ("error", "train.optimizer")
    assert "leaves out 2 of 4 trained parameters" in text and ", the first is a.bias: " in text


def test_an_argument_that_a_built_in_data_set_lacks_is_an_error(check):
    assert only(check(of(dataset_args={"num": 3})))[:2] == ("error", "train.dataset_args")


def test_a_relative_path_of_a_built_in_data_set_is_an_error(check):
    train = of(dataset="image_folder", dataset_args={"path": "data/x"})
    assert only(check(train))[:2] == ("error", "train.dataset_args.path")


@pytest.mark.parametrize("path", ["/no/such/folder", "$NO_SUCH_VARIABLE/images"])
def test_a_folder_that_only_the_nodes_may_have_is_a_warning(check, path):
    train = of(dataset="image_folder", dataset_args={"path": path})
    assert only(check(train))[:2] == ("warning", "train.dataset_args.path")


OPENS = "def data(path):\n    open(path)\n"


@pytest.mark.parametrize(("path", "level"), [("/no/such/x.csv", "warning"), ("x.csv", "error")])
def test_a_missing_file_is_an_error_only_for_a_relative_path(check, path, level):
    train = of(dataset="mine:data", dataset_args={"path": path})
    finding = only(check(train, OPENS))
    assert (
        finding[:2] == (level, "train.dataset") and "mine.py:2, in data: open(path)" in finding[2]
    )


@pytest.mark.parametrize(
    "raising", ["open('data.csv')", "__import__('subprocess').run(['no-such-program'])"]
)
def test_a_relative_name_that_is_not_in_the_spec_may_depend_on_the_host(check, raising):
    train = of(dataset="mine:data", dataset_args={})
    assert only(check(train, f"def data():\n    {raising}\n"))[0] == "warning"


def test_a_data_set_without_samples_here_is_a_warning(check):
    train = of(dataset="mine:data", dataset_args={})
    assert only(check(train, "def data():\n    return [], None\n"))[0] == "warning"


def test_code_that_needs_a_gpu_is_a_warning_with_the_users_frames(check):
    code = OWN.replace("        self.a = ", "        torch.zeros(1).cuda()\n        self.a = ")
    level, where, text = only(check(of(model="mine:Net"), code))
    assert (level, where) == ("warning", "train.model")
    assert "in __init__: torch.zeros(1).cuda()" in text and "trainer/" not in text


@pytest.mark.parametrize("error", ["KeyError('SLURM_JOB_ID')", "SystemExit(3)", "TypeError('x')"])
def test_what_own_code_raises_may_depend_on_the_host(check, error):
    train = of(dataset="mine:data", dataset_args={})
    assert only(check(train, f"def data():\n    raise {error}\n"))[0] == "warning"


def test_a_batch_above_the_training_set_is_an_error(check):
    train = of(micro_batch_size=16)
    assert check(train, world_size=4) == []
    level, where, text = only(check(train, world_size=8))
    assert (level, where) == ("error", "train.micro_batch_size") and "128" in text
    gres = Slurm(sbatch_args={"gres": "gpu:4"})
    assert only(check(train, world_size=8, slurm=gres))[0] == "error"


STREAM = """
class Stream:
    def __iter__(self):
        yield from ((float(i), i % 2) for i in range(99))
    def state_dict(self):
        return {}
    def load_state_dict(self, state):
        pass
def data():
    return Stream(), None
"""


def test_a_stream_needs_max_steps(check):
    train = of(dataset="mine:data", dataset_args={})
    level, where, text = only(check(train, STREAM))
    assert (level, where) == ("error", "train.dataset") and "train.max_steps" in text


def test_a_stream_that_resumes_with_other_samples_is_a_warning(check):
    images = STREAM.replace("float(i), i % 2", "torch.full((3, 8, 8), float(i)), i % 2")
    train = of(dataset="mine:data", dataset_args={}, max_steps=9, model="mine:Net")
    level, where, text = only(check(train, OWN + images))
    assert (level, where) == ("warning", "train.dataset") and "skips samples" in text


def test_scores_that_do_not_fit_the_labels_are_an_error(check):
    level, where, _ = only(check(of(model="mine:Net", model_args={"classes": 3})))
    assert (level, where) == ("error", "train.model")


def test_a_metric_that_the_objective_lacks_is_an_error(check):
    best = Checkpoint(best="eval_f1", best_mode="max")
    level, where, text = only(check(DATA, checkpoint=best))
    assert (level, where) == ("error", "checkpoint.best") and "eval_accuracy" in text


def test_all_mistakes_are_found_at_once(check):
    train = of(model="mine:Nett", objective="mine:x", schedule="mine:y")
    assert {dotted(each.key) for each in check(train)} == {
        *("train.model", "train.objective", "train.schedule")
    }


def test_a_model_that_is_larger_than_this_host_is_created_without_memory(check, monkeypatch):
    disk = SimpleNamespace(free=10**12)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: disk)
    train = of(model="mine:Net", model_args={"hidden": 10**10})
    level, where, text = only(check(train))
    assert (level, where) == ("error", "runs_root") and "are free" in text


@pytest.mark.parametrize(
    ("free", "level"), [(10**6, None), (140_000, "warning"), (80_000, "error")]
)
def test_the_checkpoints_that_are_kept_are_compared_with_the_disk(check, monkeypatch, free, level):
    """mine:Net with 30 hidden units has 24,360 bytes, and SGD's momentum as much again."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    findings = check(of(model="mine:Net", model_args={"hidden": 30}))
    assert [only([each])[:2] for each in findings] == ([(level, "runs_root")] if level else [])


def test_a_model_that_reads_its_numbers_is_created_on_the_cpu(check):
    code = OWN.replace("x.flatten(1)", "x.flatten(1) * float(x.flatten()[0].item() > -1)")
    assert check(of(model="mine:Net"), code) == []


def test_a_relative_path_in_the_checkout_alone_is_a_warning(check, tmp_path):
    (tmp_path / "checkout/data").mkdir()
    train = of(transform="mine:transform", transform_args={"amount": "data/"})
    code = OWN.replace("inputs * amount", "inputs")
    level, where, text = only(check(train, code))
    assert (level, where) == ("warning", "train.transform_args.amount") and "git ignores" in text
    assert check(of(transform="mine:transform", transform_args={"amount": "org/name"}), code) == []


def test_the_data_set_gets_the_world_size_of_the_spec_and_no_process_group(check):
    code = """
import torch.distributed as dist
def data(rank, world_size):
    assert (rank, world_size, dist.is_initialized()) == (0, 6, False)
    return [(torch.zeros(3), 0)] * 600, None
"""
    train = of(
        dataset="mine:data",
        dataset_args={},
        model="torch.nn:Linear",
        model_args={"in_features": 3, "out_features": 1},
        objective="mine:objective",
    )
    assert check(train, OWN + code, world_size=6) == []


# Net has ten rows in its last layer, so a thirteenth rank would have none.
@pytest.mark.parametrize("strategy", ["zero1", "fsdp"])
def test_more_shards_than_rows_are_an_error(check, strategy):
    train = of(strategy=strategy, model="mine:Net", micro_batch_size=1)
    assert check(train, world_size=10) == []
    level, key, text = only(check(train, world_size=13))
    assert (level, key) == ("error", "train.strategy")
    assert "13 shards are too many for train.model mine:Net: the longest" in text


def test_groups_that_do_not_divide_the_ranks_are_an_error(check):
    train = of(strategy="hsdp", shard_size=4, model="mine:Net", micro_batch_size=1)
    level, key, text = only(check(train, world_size=6))
    assert (level, key) == ("error", "train.shard_size")
    assert "6 ranks cannot be divided into groups of 4" in text


def test_an_unknown_class_of_blocks_is_an_error_with_the_ones_there_are(check):
    train = of(strategy="fsdp", model="mine:Net", shard_modules=["Blok"])
    level, key, text = only(check(train))
    assert (level, key) == ("error", "train.shard_modules")
    assert "the model has no Blok: its classes are Linear" in text


def test_a_parameter_without_a_dimension_is_an_error_under_fsdp(check):
    code = OWN.replace("classes)", "classes)\n        self.c = nn.Parameter(torch.ones(()))", 1)
    code = code.replace("self.a(x.flatten(1)))", "self.a(x.flatten(1))) * self.c")
    level, key, text = only(check(of(strategy="fsdp", model="mine:Net"), code))
    assert (level, key) == ("error", "train.strategy")
    assert "but c of train.model mine:Net has none" in text and "the shape [1]" in text
    assert check(of(strategy="zero1", model="mine:Net"), code) == []


@pytest.mark.parametrize("strategy", ["zero1", "fsdp"])
def test_an_optimizer_that_needs_whole_matrices_is_an_error_where_ranks_have_rows(check, strategy):
    code = OWN.replace("torch.optim.SGD(", "torch.optim.Adafactor(")
    train = of(**OWN_PARTS, strategy=strategy)
    level, key, text = only(check(train, code))
    assert (level, key) == ("error", "train.optimizer")
    assert "updates a matrix otherwise than its two halves" in text
    assert check(train, code, world_size=1) == [] == check(of(**OWN_PARTS), code)
    assert check(train) == []


def test_checkpointing_without_blocks_is_an_error(check):
    level, key, text = only(check(of(model="mlp", activation_checkpointing=True)))
    assert (level, key) == ("error", "train.activation_checkpointing")
    assert "name classes in train.shard_modules" in text
