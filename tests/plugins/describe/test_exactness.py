"""What the bits of a result depend on, and whether a resume was bitwise."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.contract.spec import Checkpoint, Spec, Train
from slurm_job_kit.trainer.plugins.describe.hooks import callbacks
from slurm_job_kit.trainer.plugins.describe.reproducibility import (
    describe,
    exactness,
    extend_history,
)
from slurm_job_kit.trainer.process.watcher import Pulse
from tests.core.ranks import context_of, place_of
from tests.core.test_loop import train
from tests.core.test_loop_own_parts import spec_of

HERE = __name__
FIRST = {"torch": "2.13", "train.lr": 0.1, "ranks": [1, 1, 1], "world size": 8, "code": "a"}
SEVEN = {"world size": 7, "torch": "2.14"}
NEWER = {"torch": "2.14", "CUDA": 13, "GPU": "B", "NCCL": 2, "cuDNN": 9}  # torch is named first
SAME, OTHER, DRAWS = "same samples", "approximate", "generator of its own"


@pytest.mark.parametrize(
    ("changes", "is_deterministic", "exact", "reason"),
    [
        ({7: {}}, True, "bitwise", ""),
        ({7: {}}, False, SAME, ""),
        ({7: NEWER}, True, SAME, "torch was 2.13, then 2.14 after step 7"),
        ({7: NEWER}, False, SAME, "; torch was 2.13, then 2.14 after step 7"),
        ({7: {"train.seed": 1}}, True, OTHER, "train.seed changed"),
        ({7: {"ranks": [1, 2, 1]}}, True, SAME, ""),
        (
            {1200: {"code": "b"}, 1300: {"code": "b"}, 1500: {"code": "c"}, 1600: {}},
            *(True, SAME, "the code changed after step 1200 and 1500 and 1600"),  # it comes back
        ),
        (
            {60: {}, 120: SEVEN, 200: SEVEN, 300: {}},
            *(True, SAME, "world size was 8, then 7 after step 120, then 8 after step 300"),
        ),
    ],
)
def test_exactness_names_each_change_with_its_steps(changes, is_deterministic, exact, reason):
    history = extend_history([], FIRST, 0)
    for step, change in changes.items():
        history = extend_history(history, FIRST | change, step)
    found, words = exactness(history, is_deterministic)
    assert (found, reason in words) == (exact, True)
    assert extend_history(history, FIRST | change, step + 100) == history


def test_an_environment_has_the_size_of_the_shard_groups_of_nodes_of_another_size(tmp_path):
    def found(local_world_size, **train):
        place = place_of(0, 4, local_world_size)
        return describe(context_of(tmp_path, Spec(train=Train(**train)), place))

    history = extend_history([found(2, strategy="hsdp")], found(4, strategy="hsdp"), 7)
    words = "train.shard_size was 2, then 4 after step 7"
    assert exactness(history, True) == (SAME, words)
    assert found(2, strategy="hsdp") == found(2, strategy="hsdp", shard_size=2)
    assert found(2, strategy="fsdp") == found(4, strategy="fsdp")


def test_a_variable_that_changes_bits_and_the_version_of_torch_count(tmp_path, monkeypatch):
    context = context_of(tmp_path, Spec())
    first = describe(context)
    assert first["torch"] == torch.__version__
    monkeypatch.setenv("NCCL_DEBUG", "INFO")  # it only prints
    monkeypatch.setenv("CUBLASLT_LOG_FILE", "/tmp/job-7.log")
    assert describe(context) == first
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    history = extend_history([first], describe(context), 7)
    words = "MKL_CBWR was null, then COMPATIBLE after step 7"
    assert exactness(history, True) == ("same samples", words)


class Drawing:
    """Samples with noise from a generator of their own, which no checkpoint has."""

    num_classes = 2

    def __init__(self):
        self.generator = np.random.default_rng(0)

    def __len__(self):
        return 20

    def __getitem__(self, index):
        noise = torch.from_numpy(self.generator.random(3, dtype=np.float32))
        return noise + index, index % 2


def drawing():
    return Drawing(), None


def drawing_transform():
    generator = torch.Generator()
    return lambda inputs, _: inputs + torch.rand(1, generator=generator)


class Counting(nn.Linear):
    """A layer with buffers that no checkpoint has: training changes the last one."""

    def __init__(self):
        super().__init__(3, 2)
        self.register_buffer("graph", torch.ones(2).to_sparse(), persistent=False)
        for name in ("mask", "count"):
            self.register_buffer(name, torch.ones(2), persistent=False)

    def forward(self, inputs):
        self.get_buffer("count").add_(self.training)
        return super().forward(inputs) * self.get_buffer("mask")


@pytest.mark.usefixtures("process_group", "no_reader_left")
@pytest.mark.parametrize(
    ("key", "name", "exact", "words"),
    [
        ("dataset", "drawing", OTHER, rf"{DRAWS}.* after step \d"),
        ("transform", "drawing_transform", OTHER, rf"{DRAWS}.* after step \d"),
        ("model", "Counting", SAME, "changes the buffer count of train.model"),
    ],
)
def test_a_resume_without_a_part_of_the_state_is_no_exact_one(
    tmp_path, capsys, key, name, exact, words
):
    spec = spec_of(Checkpoint(), **{key: f"{HERE}:{name}"})
    run, _ = train(tmp_path, spec, stop_at=7, callbacks=callbacks(Pulse()))
    assert (DRAWS in capsys.readouterr().out) == (exact == OTHER)
    train(tmp_path, spec, attempt=2, callbacks=callbacks(Pulse()))
    line = f"exactness is {exact}, not bitwise: "  # in time
    assert (line in capsys.readouterr().out) == (exact == OTHER)
    outcome = read_json(run.attempt(2).outcome)
    assert outcome["exactness"] == exact and re.search(words, outcome["exactness_reason"])
