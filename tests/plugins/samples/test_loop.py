"""The training loop on a stream."""

from typing import Any

import pytest

from slurm_job_kit.jobs.contract.spec import Checkpoint
from slurm_job_kit.trainer import parts
from slurm_job_kit.trainer.errors import UserError
from tests.core.test_loop import train
from tests.core.test_loop_own_parts import spec_of
from tests.plugins.samples.test_stream import Numbers

pytestmark = pytest.mark.usefixtures("process_group", "no_reader_left")

HERE = __name__


def stream(num_samples):
    return Numbers(num_samples), [{"x": 0, "noise": 0.5}] * 3


STREAM: dict[str, Any] = {
    "dataset": f"{HERE}:stream",
    "dataset_args": {"num_samples": 10},
    "model": "torch.nn:Linear",
    "model_args": {"in_features": 2, "out_features": 1},
    "objective": "tests.core.test_loop_own_parts:fitted",
    "objective_args": {},
    "lr": 0.01,
    "max_steps": 9,
    "eval_every_steps": 4,
}


def test_a_stream_needs_a_number_of_steps(tmp_path):
    words = rf"train.dataset {HERE}:stream returns a stream, .*: set train.max_steps"
    with pytest.raises(UserError, match=words):
        train(tmp_path, spec_of(Checkpoint(), **{**STREAM, "max_steps": None}))


def test_a_stream_without_this_plugin_is_refused_with_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "PLUGINS", {})
    words = (
        rf"^train.dataset {HERE}:stream is read sample by sample, which needs the plugin samples"
    )
    with pytest.raises(UserError, match=words):
        train(tmp_path, spec_of(Checkpoint(), **STREAM))
