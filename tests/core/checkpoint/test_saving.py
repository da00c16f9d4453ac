"""The state of a training is copied and committed while the training continues."""

import os
import threading
import time
from typing import Any

import pytest
import torch

from slurm_job_kit.jobs.contract.checkpoint.names import checkpoint_name, checkpoint_names
from slurm_job_kit.jobs.contract.checkpoint.reader import Contents
from slurm_job_kit.jobs.contract.spec import Checkpoint
from slurm_job_kit.trainer.checkpoint import checkpoints as module
from slurm_job_kit.trainer.checkpoint import commit, outline
from slurm_job_kit.trainer.checkpoint.checkpoints import Checkpoints
from slurm_job_kit.trainer.checkpoint.digest import tensors_sha256, weights_sha256
from slurm_job_kit.trainer.checkpoint.loading import ReadAhead
from slurm_job_kit.trainer.checkpoint.staging import Staging, first_not_finite
from slurm_job_kit.trainer.errors import NotFinite, StorageError, Superseded
from tests.core.checkpoint.checkpoint_kit import (
    BATCHES,
    bits,
    job_of,
    replica_of,
    save,
    state_at,
    train,
)

pytestmark = pytest.mark.usefixtures("process_group")

LIMIT_S = 100


@pytest.fixture
def gate(monkeypatch):
    """An event that saves wait for; `most` is the highest number of saves at one time."""
    gate: Any = threading.Event()
    gate.most, inside, really = 0, [], commit.commit_and_prune

    def save(*arguments):
        inside.append(1)
        gate.most = max(gate.most, len(inside))
        assert gate.wait(LIMIT_S)
        try:
            return really(*arguments)
        finally:
            inside.pop()

    monkeypatch.setattr(commit, "commit_and_prune", save)
    yield gate
    gate.set()


def test_a_save_does_not_contain_later_steps_of_the_training(tmp_path, gate):
    context, replica = job_of(tmp_path), replica_of()
    checkpoints, state = Checkpoints(context, BATCHES), state_at(6)
    before = bits(replica)
    checkpoints.save(replica, state)
    assert checkpoints.newest_step == 6 and checkpoint_names(context.run.dir.checkpoints) == []
    train(replica)
    state.metrics["train_loss"] = -1.0
    state.window.zero_()
    assert checkpoints.completed() == []
    gate.set()
    checkpoints.finish(lambda: None)
    fresh = replica_of(seed=1)
    loaded = Checkpoints(context, BATCHES).load(fresh, ReadAhead(context))
    assert bits(fresh) == before != bits(replica)
    assert (loaded.metrics, loaded.window.tolist()) == ({"train_loss": 6 / 7}, [2.0, 6.0, 1.0])


def test_one_save_is_in_flight_and_the_next_waits_for_it(tmp_path, gate):
    context, replica = job_of(tmp_path, Checkpoint(keep_last=9)), replica_of()
    checkpoints, digests = Checkpoints(context, BATCHES), []
    opener = threading.Timer(1.0, gate.set)  # the second save waits for it
    for step in range(1, 6):
        if step == 2:
            opener.start()
        digests.append(weights_sha256(replica))
        checkpoints.save(replica, state_at(step))
        train(replica)
    checkpoints.finish(lambda: None)
    opener.join()
    saved = checkpoints.completed()
    assert [each.step for each in saved] == [1, 2, 3, 4, 5] and gate.most == 1
    assert saved[1].stall_s > 0.02 and saved[0].seconds > 0.1
    assert checkpoints.completed() == []
    for step, digest in enumerate(digests, start=1):
        contents = Contents.open(context.run.dir.checkpoints / checkpoint_name(step))
        model = outline.whole(outline.read(contents)["model"], contents)
        assert tensors_sha256(model) == digest


def test_a_rank_that_waits_for_a_save_beats(tmp_path, gate, monkeypatch):
    monkeypatch.setattr(module, "POLL_S", 0.01)
    context, replica, beats = job_of(tmp_path), replica_of(), []
    checkpoints = Checkpoints(context, BATCHES)
    checkpoints.save(replica, state_at(6))

    def beat():
        beats.append(checkpoint_names(context.run.dir.checkpoints))
        if len(beats) == 5:
            gate.set()

    checkpoints.finish(beat)
    assert beats[:5] == [[]] * 5
    assert checkpoint_names(context.run.dir.checkpoints) == ["step-00000006"]


def test_an_error_of_the_writer_is_raised_at_a_check_that_never_waits(tmp_path, gate):
    context, replica = job_of(tmp_path), replica_of()
    checkpoints = Checkpoints(context, BATCHES)
    context.run.dir.checkpoints.rmdir()
    checkpoints.save(replica, state_at(6))
    assert checkpoints.completed() == []
    gate.set()
    deadline = time.monotonic() + LIMIT_S
    with pytest.raises(StorageError, match=r"saving checkpoint .*step-00000006: .*No such file"):
        while time.monotonic() < deadline:
            checkpoints.completed()


@pytest.mark.parametrize(
    ("owner", "now"),
    [(None, "owner.json is missing"), ('{"job_id": "8", "attempt": 1}', "attempt 1 of job 8")],
)
def test_an_attempt_that_does_not_own_the_run_commits_nothing(tmp_path, owner, now):
    context = job_of(tmp_path)
    checkpoints = Checkpoints(context, BATCHES)
    of_another = context.run.dir.checkpoints / ".tmp-step-00000008-attempt-2"
    of_another.mkdir()
    context.run.dir.owner.unlink()
    if owner is not None:
        context.run.dir.owner.write_text(owner)
    checkpoints.save(replica_of(), state_at(6))
    with pytest.raises(Superseded, match=f"{now}.* owns .* this is attempt 1 of job 7"):
        checkpoints.finish(lambda: None)
    assert list(context.run.dir.checkpoints.iterdir()) == [of_another]


def test_an_attempt_that_comes_back_leaves_a_newer_ones_save_in_flight_alone(tmp_path):
    context = job_of(tmp_path)
    context.run.dir.owner.write_text('{"attempt": 2}')
    in_flight = context.run.dir.checkpoints / ".tmp-step-00000006-1234"
    in_flight.mkdir(parents=True)
    with pytest.raises(Superseded):
        Checkpoints(context, BATCHES)
    assert in_flight.is_dir()


def test_a_hint_that_cannot_be_written_ends_no_training(tmp_path, monkeypatch, capsys):
    context, replica = job_of(tmp_path), replica_of()
    state = state_at(6, best={"metric": "eval_loss", "value": 0.5, "step": 6})
    checkpoints = Checkpoints(context, BATCHES)
    checkpoints.save(replica, state)
    checkpoints.finish(lambda: None)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    checkpoints.point_at_best(state)
    assert "checkpoints/best: [Errno 28] No space left" in capsys.readouterr().out


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_committed_only_on_request(tmp_path, value):
    replica = replica_of()
    with torch.no_grad():
        replica.module[2].bias[1] = value
    for stop_on_nan in (True, False):
        context = job_of(tmp_path / str(stop_on_nan), stop_on_nan=stop_on_nan)
        checkpoints = Checkpoints(context, BATCHES)
        checkpoints.save(replica, state_at(6))
        if stop_on_nan:
            with pytest.raises(NotFinite, match=r"2.bias is not finite at step 6"):
                checkpoints.finish(lambda: None)
        checkpoints.finish(lambda: None)
        assert bool(checkpoint_names(context.run.dir.checkpoints)) is not stop_on_nan


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_one_value_anywhere_makes_a_tensor_not_finite(dtype):
    for position in range(0, 100, 7):
        for value in (float("nan"), float("inf"), -float("inf")):
            tensor = torch.ones(100, dtype=dtype)
            assert first_not_finite({"x": tensor, "n": torch.zeros(0), "i": tensor.int()}) is None
            tensor[position] = value
            assert first_not_finite({"x": tensor}) == "x"


def test_a_mask_of_infinities_is_committed_as_the_buffer_that_it_is(tmp_path):
    context, replica = job_of(tmp_path), replica_of()
    replica.module.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
    save(context, replica, 6)
    assert checkpoint_names(context.run.dir.checkpoints) == ["step-00000006"]


def test_staging_reuses_its_memory_and_keeps_plain_values_and_formats():
    staging, state = Staging(), {"a": torch.ones(3), "b": [(1, 2.5)], "c": {"d": None}}
    first, _ = staging.take(state)
    assert first["b"] == [(1, 2.5)] and first["c"] == {"d": None}
    second, _ = staging.take({"a": torch.zeros(3)})
    assert second["a"].data_ptr() == first["a"].data_ptr() and second["a"].sum() == 0
    channels_last = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    copy, _ = staging.take({"a": channels_last})
    assert torch.equal(copy["a"], channels_last) and copy["a"].stride() == channels_last.stride()
