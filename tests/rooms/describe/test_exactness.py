"""What the bits of a result depend on, and whether a resume was bitwise."""

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import torch

from slurm_job_kit.jobs.rundir import read_json
from slurm_job_kit.jobs.spec import Checkpoint, Spec, Train
from slurm_job_kit.trainer.hooks import Pulse
from slurm_job_kit.trainer.rooms.describe.hooks import callbacks
from slurm_job_kit.trainer.rooms.describe.reproducibility import describe, exactness, extend_history
from tests.core.ranks import context_of, place_of
from tests.core.test_loop import train
from tests.core.test_loop_own_parts import spec_of

HERE = __name__


def test_exactness_names_what_changed():
    first = {"torch": "2.13", "world size": 3, "train.lr": 0.1, "ranks": [1, 1, 1]}
    assert exactness(extend_history([first], dict(first)), True)[0] == "bitwise"
    assert exactness([first], False)[0] == "same samples"
    other = extend_history([first], {**first, "torch": "2.14"})
    assert exactness(other, True) == ("same samples", "torch was 2.13, then 2.14 after step 0")
    for key in ("train.seed", "train.dataset_args", "train.collate"):
        exact, reason = exactness(extend_history([first], {**first, key: 1}), True)
        assert exact == "approximate" and reason.startswith(f"{key} changed")
    moved = extend_history([first], {**first, "ranks": [1, 2, 1]})
    assert exactness(moved, True)[0] == "same samples"


def test_an_environment_has_the_size_of_the_shard_groups_of_nodes_of_another_size(tmp_path):
    def found(local_world_size, **train):
        place = place_of(0, 4, local_world_size)
        return describe(context_of(tmp_path, Spec(train=Train(**train)), place))

    history = extend_history([found(2, strategy="hsdp")], found(4, strategy="hsdp"), 7)
    assert exactness(history, True) == (
        "same samples",
        "train.shard_size was 2, then 4 after step 7",
    )
    assert found(2, strategy="hsdp") == found(2, strategy="hsdp", shard_size=2)
    assert found(2, strategy="fsdp") == found(4, strategy="fsdp")


def test_variables_that_change_bits_are_a_part_of_the_environment(tmp_path, monkeypatch):
    context = context_of(tmp_path, Spec())
    first = describe(context)
    monkeypatch.setenv("NCCL_DEBUG", "INFO")  # it only prints
    monkeypatch.setenv("CUBLASLT_LOG_FILE", "/tmp/job-7.log")
    assert describe(context) == first
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    history = extend_history([first], describe(context), 7)
    words = "MKL_CBWR was null, then COMPATIBLE after step 7"
    assert exactness(history, True) == ("same samples", words)


def test_exactness_names_the_steps_at_which_the_code_changed():
    first = {"code": "a", "torch": "2.13", "ranks": [1]}
    history = extend_history([], first, 0)
    history = extend_history(history, {**first, "code": "b"}, 1200)
    assert exactness(history, True) == ("same samples", "the code changed after step 1200")
    assert extend_history(history, {**first, "code": "b"}, 1300) == history
    history = extend_history(history, {**first, "code": "c", "torch": "2.14"}, 1500)
    history = extend_history(history, {**first, "torch": "2.14"}, 1600)  # it comes back
    words = "the code changed after step 1200 and 1500 and 1600"
    torch_words = "torch was 2.13, then 2.14 after step 1500"
    assert exactness(history, True) == ("same samples", f"{words}; {torch_words}")


def test_exactness_names_each_change_of_the_world_size_with_its_step():
    history: list[dict[str, Any]] = []
    for step, size in {0: 8, 60: 8, 120: 7, 200: 7, 300: 8}.items():
        torch_version = "2.14" if size == 7 else "2.13"
        now = {"torch": torch_version, "world size": size, "ranks": [1] * size}
        history = extend_history(history, now, step)
    words = "world size was 8, then 7 after step 120, then 8 after step 300"
    torch_words = "torch was 2.13, then 2.14 after step 120, then 2.13 after step 300"
    assert exactness(history, True) == ("same samples", f"{words}; {torch_words}")
    assert exactness(history, False)[1].endswith(f"; {words}")
    assert extend_history(history, now, 400) == history


def test_another_code_and_a_changed_hyperparameter_are_another_environment(tmp_path):
    context = context_of(tmp_path, Spec())
    codes = [dataclasses.replace(context.run, code_digest=code) for code in ("a", "b")]
    first, other = (describe(dataclasses.replace(context, run=code)) for code in codes)
    history = extend_history(extend_history([], first), other, 20)
    assert exactness(history, True) == ("same samples", "the code changed after step 20")
    faster = describe(context_of(tmp_path, Spec(train=Train(lr=0.05))))
    words = "train.lr was 0.1, then 0.05 after step 7"
    assert exactness(extend_history([describe(context)], faster, 7), True)[1] == words


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


@pytest.mark.usefixtures("process_group", "no_reader_left")
@pytest.mark.parametrize(
    "changes", [{"dataset": f"{HERE}:drawing"}, {"transform": f"{HERE}:drawing_transform"}]
)
def test_a_resume_of_a_generator_of_its_own_is_no_exact_one(tmp_path, capsys, changes):
    spec = spec_of(Checkpoint(), **changes)
    run, _ = train(tmp_path, spec, stop_at=7, callbacks=callbacks(Pulse()))
    assert "generator of its own" in capsys.readouterr().out
    train(tmp_path, spec, attempt=2, callbacks=callbacks(Pulse()))
    outcome = read_json(run.attempt(2).outcome)
    assert outcome["exactness"] == "approximate"
    assert re.search(r"generator of its own.* after step \d", outcome["exactness_reason"])
