"""A local run crashes by a mistake in the user's code and goes on: mended, longer, elsewhere."""

import pytest

from slurm_job_kit.jobs.base.files import read_json, read_jsonl
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.plugins import PLUGINS
from slurm_job_kit.jobs.runs.code_snapshot import digest_in
from tests.checkout import copy_checkout

SPEC = """
name: tiny
launch: {max_crashes: 1}
train:
  model: mine:Net
  dataset: configs.own_parts:rings
  dataset_args: {num_train: 200, num_test: 20}
  micro_batch_size: 10
  momentum: 0.9
checkpoint: {every_steps: 5, keep_last: 100}
log: {every_steps: 1}
"""
MODEL = """
import os
import pathlib
import time

import torch
from torch import nn


def wait_for_checkpoint():
    saved, end = pathlib.Path(os.environ["KIT_RUN_DIR"], "checkpoints"), time.monotonic() + 60
    while not [*saved.glob("step-*[1-9]*")] and time.monotonic() < end:
        time.sleep(0.1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.2), nn.Linear(8, 2))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, points):
        self.calls += self.training
        if self.calls == 13:
            %s
        return self.layers(points)
"""
# A checkpoint is written beside the training: the error waits for the first after step 0.
BUG = "wait_for_checkpoint(); raise AssertionError('a planted error')"
MENDED = "pass"


def newest(kit):
    return RunDir((kit.root / "tiny/latest").resolve())


@pytest.mark.slow
@pytest.mark.plugin("changes")
def test_a_run_goes_on_with_mended_code_then_for_longer_and_in_another_run(tmp_path, kit):
    kit.repository = tmp_path / "copy"
    copy_checkout(kit.repository)
    model, config = kit.repository / "mine.py", tmp_path / "tiny.yaml"
    model.write_text(MODEL % BUG)
    config.write_text(SPEC)
    status, _, stderr = kit.run("submit", config, "--cluster", "local")
    run = newest(kit)
    advice = f"correct the code, then resume with it: make resume RUN={run.run_id} CODE=1 YES=1"
    assert status == 1 and advice in stderr
    (crashed,) = read_jsonl(run.attempts)
    old = digest_in(run.code.resolve().name)
    assert (crashed["why"]["kind"], crashed["code"]) == ("user_code", old)

    model.write_text(MODEL % MENDED)
    resume = ("resume", run.run_id, "--cluster", "local")
    status, _, stderr = kit.run(*resume, "--code")
    assert status == 2 and f"git diff --no-index {run.code.resolve()} " in stderr
    status, _, stderr = kit.run(*resume, "--code", "--yes")
    assert status == 0, stderr
    check_code(run, old)

    status, _, stderr = kit.run(*resume, "train.epochs=2", "--yes")
    assert status == 0, stderr
    result = read_json(run.result)
    assert (result["status"], result["global_step"], result["attempts"]) == ("completed", 40, 3)
    if "describe" in PLUGINS:
        assert "; train.epochs was 1, then 2 after step " in result["exactness_reason"]
    steps = [line["step"] for line in read_jsonl(run.metrics) if "train_loss" in line]
    assert steps == list(range(1, 41))

    source = f"{run.run_id}@step-25"
    words = ("submit", config, "train.epochs=2", "--from", source, "--cluster", "local")
    status, _, stderr = kit.run(*words)
    assert status == 0, stderr
    check_begun_from(newest(kit), run)


def check_code(run, old):
    """Which code did which steps stands in the files of the run."""
    new, result = digest_in(run.code.resolve().name), read_json(run.result)
    assert read_json(run.provenance)["code"] == new
    first, second = read_jsonl(run.attempts)
    step = second["first_step"] - 1
    assert step in (5, 10) and (first["code"], second["code"]) == (old, new)
    reason = f"the code changed after step {step}"
    if "describe" in PLUGINS:
        assert (result["exactness"], result["exactness_reason"]) == ("same samples", reason)


def check_begun_from(begun, run):
    """The new run ends with the bits of the other run, and has metrics of its own steps only."""
    assert begun != run
    result, expected = read_json(begun.result), read_json(run.result)
    for name in ("global_step", "weights_sha256", "optimizer_sha256"):
        assert result[name] == expected[name]
    origin = read_json(begun.provenance)["origin"]
    assert (origin["run_id"], origin["step"]) == (run.run_id, 25)
    steps = [line["step"] for line in read_jsonl(begun.metrics) if "train_loss" in line]
    assert steps == list(range(26, 41))
    assert "is shorter than when the checkpoint was saved" not in begun.rank_log(0).read_text()
