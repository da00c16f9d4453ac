"""The state of a training is copied, committed while the training continues, and restored."""

import dataclasses
import hashlib
import io
import json
import os
import pickle
import shutil
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.checkpoint_names import checkpoint_name, checkpoint_names
from slurm_job_kit.jobs.records.frozen import KeyChange, SpecChange
from slurm_job_kit.jobs.rundir import RunDir, read_json
from slurm_job_kit.jobs.spec import Checkpoint, Spec, Train
from slurm_job_kit.trainer.checkpoint import checkpoints as module
from slurm_job_kit.trainer.checkpoint import export, outline
from slurm_job_kit.trainer.checkpoint.checkpoints import Checkpoints
from slurm_job_kit.trainer.checkpoint.digest import optimizer_sha256, weights_sha256
from slurm_job_kit.trainer.checkpoint.read_ahead import ReadAhead
from slurm_job_kit.trainer.checkpoint.setup import changed_keys
from slurm_job_kit.trainer.checkpoint.staging import Staging, first_not_finite
from slurm_job_kit.trainer.checkpoint.state import (
    SavedState,
    TrainState,
    check_fits,
    check_moments,
    parse,
    restored_state,
)
from slurm_job_kit.trainer.dist.context import DistributedContext
from slurm_job_kit.trainer.dist.run_handle import RankContext, RunHandle
from slurm_job_kit.trainer.errors import NotFinite, StorageError, Superseded, UserError
from slurm_job_kit.trainer.events import Events
from slurm_job_kit.trainer.model.gpt import GPT
from slurm_job_kit.trainer.storage import commit, reader
from slurm_job_kit.trainer.storage.commit import PendingCheckpoint
from slurm_job_kit.trainer.storage.manifest import LATEST, Manifest
from slurm_job_kit.trainer.strategy.ddp import Ddp
from slurm_job_kit.trainer.strategy.sharding import Sharding

pytestmark = pytest.mark.usefixtures("process_group")


def data_of(global_batch_size=12, samples_per_epoch=96, digest=None):
    """The sizes of a data set, as `Checkpoints` compares them."""
    length = SimpleNamespace(global_batch_size=global_batch_size, steps_per_epoch=8)
    data: Any = SimpleNamespace(length=length, samples_per_epoch=samples_per_epoch, digest=digest)
    return data


BATCHES = data_of()
LIMIT_S = 20


def context_of(rank, world_size):
    return DistributedContext(rank, rank, 0, world_size, world_size, "here")


def job_of(path, keep=None, **train):
    run_dir = RunDir(path)
    run_dir.checkpoints.mkdir(parents=True, exist_ok=True)
    run_dir.owner.write_text('{"job_id": "7", "attempt": 1}')
    spec = Spec(train=Train(**train), checkpoint=keep or Checkpoint())
    run_dir.spec.write_text(spec.to_json())
    return RankContext(
        RunHandle(run_dir, spec, 1, "7"), context_of(0, 1), torch.device("cpu"), Events(0)
    )


def replica_of(seed=0, width=3, optimizer=torch.optim.AdamW, scaler="cpu"):
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.Linear(width, 2))
    scaler = torch.amp.GradScaler(scaler, enabled=scaler is not None)
    replica = SimpleNamespace(
        wrapped=module,
        module=module,
        strategy=Ddp(Train(), context_of(0, 1), torch.device("cpu")),
        optimizer=optimizer(module.parameters(), lr=0.1),
        scaler=scaler,
        metric_names=("accuracy",),
        empty_row=lambda: torch.zeros(3, dtype=torch.float64),
    )
    train(replica)
    return replica


def train(replica):
    replica.module(torch.randn(5, 2)).square().sum().backward()
    replica.optimizer.step()


def state_at(step, **more):
    window = torch.tensor([step / 3, step, 1.0], dtype=torch.float64)
    names = ("accuracy",)
    return TrainState(window, step, names, metrics={"train_loss": step / 7}, **more)


def bits(replica):
    return weights_sha256(replica), optimizer_sha256(replica)


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


def test_all_that_was_saved_comes_back(tmp_path):
    context, saved = job_of(tmp_path), replica_of()
    saved.scaler.load_state_dict({**saved.scaler.state_dict(), "scale": 512.0})
    best = {"metric": "eval_loss", "value": 0.5, "step": 6}
    state = state_at(6, last_eval_step=6, metrics_bytes=9, environments=[{"torch": "2"}], best=best)
    checkpoints = Checkpoints(context, BATCHES)
    checkpoints.save(saved, state)
    checkpoints.finish(lambda: None)
    fresh, newest = replica_of(seed=1), ReadAhead(context)
    checkpoints = Checkpoints(context, BATCHES)
    assert bits(fresh) != bits(saved)
    loaded = checkpoints.load(fresh, newest)
    assert loaded.window.tolist() == state.window.tolist()
    assert dataclasses.replace(loaded, window=state.window) == state
    assert checkpoints.newest_step == 6
    assert bits(fresh) == bits(saved) and fresh.scaler.state_dict() == saved.scaler.state_dict()
    assert [group["betas"] for group in fresh.optimizer.param_groups] == [(0.9, 0.999)]
    manifest = read_json(context.run.dir.checkpoints / "step-00000006" / "manifest.json")
    assert (manifest["world_size"], manifest["attempt"], manifest["best"]) == (1, 1, best)


def test_without_a_checkpoint_the_state_is_fresh(tmp_path):
    context = job_of(tmp_path)
    newest, checkpoints = ReadAhead(context), Checkpoints(context, BATCHES)
    state = checkpoints.load(replica_of(), newest)
    assert (state.global_step, state.best, checkpoints.newest_step) == (0, {}, None)


def save(context, replica, step, **more):
    checkpoints = Checkpoints(context, BATCHES)
    checkpoints.save(replica, state_at(step, **more))
    checkpoints.finish(lambda: None)


def loaded(context, replica):
    newest = ReadAhead(context)  # before the folder is made again, as in a start
    return Checkpoints(context, BATCHES).load(replica, newest)


def record_attempts(context, *checkpoints):
    lines = [json.dumps({"attempt": i, "checkpoint": name}) for i, name in enumerate(checkpoints)]
    context.run.dir.attempts.write_text("".join(f"{line}\n" for line in lines))


def test_a_checkpoint_that_a_user_put_aside_is_not_missed(tmp_path):
    context = job_of(tmp_path)
    root = context.run.dir.checkpoints
    save(context, replica_of(), 6)
    save(context, replica_of(), 9)
    record_attempts(context, "step-00000009")
    assert reader.newest_known(context.run.dir, ["step-00000006"]) == "step-00000009"
    (root / "step-00000009").rename(root / "aside-step-00000009")
    assert reader.newest_known(context.run.dir, ["step-00000006"]) == "step-00000006"


def test_a_state_from_another_run_brings_no_offset_of_its_metrics(tmp_path):
    context = job_of(tmp_path)
    save(context, replica_of(), 6, metrics_bytes=70)
    assert loaded(context, replica_of()).metrics_bytes == 70
    origin = {"run_id": "x", "run_dir": "/x", "checkpoint": "step-00000006", "step": 6}
    context.run.dir.provenance.write_text(json.dumps({"origin": origin}))
    assert loaded(context, replica_of()).metrics_bytes == 0
    save(context, replica_of(), 9, metrics_bytes=30)
    assert loaded(context, replica_of()).metrics_bytes == 30


def lose_all(context, how):
    """Delete the checkpoints; `how` names the file that still shows that they existed."""
    if how == "records":
        shutil.rmtree(context.run.dir.checkpoints)
        record_attempts(context, "step-00000006", None)
    elif how == "hint":
        shutil.rmtree(context.run.dir.checkpoints / "step-00000006")
    else:
        (context.run.dir.checkpoints / "step-00000006" / "rank-00000.bin").unlink()
        (context.run.dir.checkpoints / LATEST).unlink()


@pytest.mark.parametrize("how", ["records", "hint", "damaged"])
def test_a_run_that_lost_all_its_checkpoints_does_not_start_at_step_0(tmp_path, how):
    context = job_of(tmp_path)
    save(context, replica_of(), 6)
    lose_all(context, how)
    words = (
        rf"^the run had checkpoint step-00000006, but {tmp_path}/checkpoints has no undamaged one: "
        "bring its files back and resume, or begin a new run; nothing was overwritten$"
    )
    with pytest.raises(UserError, match=words):
        loaded(context, replica_of())


def test_a_superseded_attempt_reads_and_renames_no_checkpoint(tmp_path):
    context = job_of(tmp_path)
    save(context, replica_of(), 6)
    (context.run.dir.checkpoints / "step-00000006" / "rank-00000.bin").write_bytes(b"damaged")
    context.run.dir.owner.write_text('{"job_id": "8", "attempt": 2}')
    with pytest.raises(Superseded):
        ReadAhead(context).wait()
    assert checkpoint_names(context.run.dir.checkpoints) == ["step-00000006"]


def test_an_owner_that_cannot_be_read_is_told_with_the_way_out(tmp_path):
    context = job_of(tmp_path / "run")
    shutil.rmtree(context.run.dir.path)
    context.run.dir.path.touch()
    with pytest.raises(StorageError, match="looking for a checkpoint in .* move the run directory"):
        ReadAhead(context)


def test_a_run_that_was_stopped_before_its_first_checkpoint_starts_at_step_0(tmp_path):
    context = job_of(tmp_path)
    record_attempts(context, None, None)
    assert loaded(context, replica_of()).global_step == 0


def test_a_checkpoint_that_is_gone_is_named_and_an_older_one_used(tmp_path, capsys):
    context = job_of(tmp_path)
    for step in (3, 6):
        save(context, replica_of(), step)
    shutil.rmtree(context.run.dir.checkpoints / "step-00000006")
    assert loaded(context, replica_of()).global_step == 3
    words = f"step-00000006 is missing from {tmp_path}/checkpoints: continuing from an older one\n"
    assert words in capsys.readouterr().out
    save(context, replica_of(), 4)
    loaded(context, replica_of())
    assert "is missing" not in capsys.readouterr().out


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
    assert saved[1].stall_s > 0.02 and saved[0].seconds > 0.1 and saved[0].nbytes > 1000
    assert checkpoints.completed() == []
    for step, digest in enumerate(digests, start=1):
        export.export(context.run.dir.checkpoints / checkpoint_name(step), tmp_path / "out")
        with safetensors.safe_open(tmp_path / "out", "pt") as file:
            assert file.metadata()["weights_sha256"] == digest


def test_every_rank_knows_whether_a_save_is_in_flight(tmp_path, gate):
    checkpoints = Checkpoints(job_of(tmp_path), BATCHES)
    assert not checkpoints.is_any_saving()
    checkpoints.save(replica_of(), state_at(1))
    assert checkpoints.is_any_saving() and checkpoints.is_saving()
    gate.set()
    checkpoints.finish(lambda: None)
    assert not checkpoints.is_any_saving()


def test_a_checkpoint_that_is_kept_is_never_postponed(tmp_path):
    kept = Checkpoint(keep_every_steps=10, keep_every_epochs=2)  # an epoch has 8 steps
    checkpoints = Checkpoints(job_of(tmp_path, kept), BATCHES)
    assert [step for step in range(1, 21) if checkpoints.is_kept(state_at(step))] == [10, 16, 20]
    assert checkpoints.is_kept(state_at(3, best={"metric": "eval_loss", "value": 1.0, "step": 3}))


def test_checkpoints_at_multiples_of_steps_and_of_epochs_are_kept(tmp_path):
    # An epoch has 8 steps.
    context = job_of(tmp_path, Checkpoint(keep_last=1, keep_every_steps=10, keep_every_epochs=2))
    checkpoints, replica = Checkpoints(context, BATCHES), replica_of()
    for step in (8, 10, 16, 18, 20, 21):
        checkpoints.save(replica, state_at(step))
        checkpoints.finish(lambda: None)
    kept = [checkpoint_name(step) for step in (21, 20, 16, 10)]
    assert checkpoint_names(context.run.dir.checkpoints) == kept


def test_an_error_of_the_writer_is_raised_at_a_check_that_never_waits(tmp_path, gate):
    context, replica = job_of(tmp_path), replica_of()
    checkpoints = Checkpoints(context, BATCHES)
    context.run.dir.checkpoints.rmdir()
    checkpoints.save(replica, state_at(6))
    checkpoints.check()
    gate.set()
    deadline = time.monotonic() + LIMIT_S
    with pytest.raises(StorageError, match=r"saving checkpoint .*step-00000006: .*No such file"):
        while time.monotonic() < deadline:
            checkpoints.check()


@pytest.mark.parametrize(
    "owner", [None, '{"job_id": "7", "attempt": 2}', '{"job_id": "8", "attempt": 1}']
)
def test_an_attempt_that_does_not_own_the_run_commits_nothing(tmp_path, owner):
    context = job_of(tmp_path)
    checkpoints = Checkpoints(context, BATCHES)
    context.run.dir.owner.unlink()
    if owner is not None:
        context.run.dir.owner.write_text(owner)
    checkpoints.save(replica_of(), state_at(6))
    now = {None: "owner.json is missing", "7": "attempt 2 of job 7", "8": "attempt 1 of job 8"}
    job_id = owner and json.loads(owner)["job_id"]
    words = rf"{now[job_id]}.* owns .* this is attempt 1 of job 7"
    with pytest.raises(Superseded, match=words):
        checkpoints.finish(lambda: None)
    assert list(context.run.dir.checkpoints.iterdir()) == []


def test_an_attempt_that_comes_back_leaves_a_newer_ones_save_in_flight_alone(tmp_path):
    context = job_of(tmp_path)
    context.run.dir.owner.write_text('{"attempt": 2}')
    in_flight = context.run.dir.checkpoints / ".tmp-step-00000006-1234"
    in_flight.mkdir(parents=True)
    with pytest.raises(Superseded):
        Checkpoints(context, BATCHES)
    assert in_flight.is_dir()


def pending(step, files=(), check_before_rename=lambda: None):
    return PendingCheckpoint(Manifest(step, files=()), dict(files), check_before_rename)


def state_pt(step, values):
    """A checkpoint of the format with a state.pt, which has these bytes."""
    manifest = Manifest(format_version=2, global_step=step, attempt=1, files=())
    return PendingCheckpoint(manifest, {"state.pt": lambda sink: sink.write(values)}, lambda: None)


def saved_by_torch(values):
    file = io.BytesIO()
    torch.save(values, file)
    return file.getvalue()


def test_an_attempt_superseded_while_it_reads_back_moves_no_hint_and_removes_nothing(tmp_path):
    root, is_owner = tmp_path / "checkpoints", iter([True, False])

    def check_before_rename():
        if not next(is_owner):
            raise Superseded("attempt 2 owns the run")

    root.mkdir()
    for step in (4, 5):
        commit.commit_and_prune(root, pending(step), commit.Retention(keep_last=2))
    with pytest.raises(Superseded):
        superseded = pending(6, check_before_rename=check_before_rename)
        commit.commit_and_prune(root, superseded, commit.Retention(keep_last=1))
    assert checkpoint_names(root) == [checkpoint_name(step) for step in (6, 5, 4)]
    assert (root / LATEST).read_text() == f"{checkpoint_name(5)}\n"


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


class Sleeper:
    """An object whose pickle runs a function in the process that loads it."""

    def __reduce__(self):
        return (time.sleep, (60,))


@pytest.mark.parametrize("kind", ["pickle", "zip", "list", "text"])
def test_a_checkpoint_of_more_than_tensors_is_quarantined_unread(tmp_path, kind, capsys):
    context, replica = job_of(tmp_path), replica_of()
    checkpoints = Checkpoints(context, BATCHES)
    checkpoints.save(replica, state_at(6))
    checkpoints.finish(lambda: None)
    values = {
        "pickle": pickle.dumps({"model": Sleeper()}),
        "zip": saved_by_torch({"model": Sleeper()}),
        "list": saved_by_torch([1]),
        "text": b"hello",
    }[kind]
    commit.commit(context.run.dir.checkpoints, state_pt(9, values))
    assert loaded(context, replica_of(seed=1)).global_step == 6
    assert "step-00000009 is damaged and now quarantined-step-00000009" in capsys.readouterr().out
    assert checkpoint_names(context.run.dir.checkpoints) == ["step-00000006"]


def test_staging_reuses_its_memory_and_refuses_other_types():
    staging, state = Staging(), {"a": torch.ones(3), "b": [(1, 2.5)], "c": {"d": None}}
    first, _ = staging.take(state)
    assert first["b"] == [(1, 2.5)] and first["c"] == {"d": None}
    second, _ = staging.take({"a": torch.zeros(3)})
    assert second["a"].data_ptr() == first["a"].data_ptr() and second["a"].sum() == 0
    channels_last = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    copy, _ = staging.take({"a": channels_last})
    assert torch.equal(copy["a"], channels_last) and copy["a"].stride() == channels_last.stride()
    with pytest.raises(UserError, match=r"state\['x'\]\[0\] is a set, which no checkpoint can"):
        staging.take({"x": [{1}]})


def load_of(tmp_path, batches=BATCHES, **train):
    """Load what a training with default settings has saved, with other settings."""
    first = job_of(tmp_path)
    checkpoints = Checkpoints(first, BATCHES)
    checkpoints.save(replica_of(), state_at(6))
    checkpoints.finish(lambda: None)
    context = job_of(tmp_path, **train)
    return Checkpoints(context, batches).load(replica_of(seed=1), ReadAhead(context))


@pytest.mark.parametrize(
    ("size", "accumulation", "fix"),
    [(16, 1, "to 12, or train.micro_batch_size to 12"), (16, 5, "train.global_batch_size to 12$")],
)
def test_another_global_batch_names_both_sides_and_the_fix(tmp_path, size, accumulation, fix):
    batches = data_of(global_batch_size=size)
    with pytest.raises(UserError, match=f"global batch of 12, this start has 16: .*{fix}"):
        load_of(tmp_path, batches, grad_accum_steps=accumulation)


def test_another_number_of_samples_names_both_sides(tmp_path):
    batches = data_of(samples_per_epoch=84)
    with pytest.raises(UserError, match="with 96 samples per epoch, this start has 84: bring back"):
        load_of(tmp_path, batches)


def test_other_content_of_the_same_size_is_refused(tmp_path):
    words = "the data of train.dataset digits differ from those of the save: bring back the files"
    with pytest.raises(UserError, match=words):
        load_of(tmp_path, data_of(digest="of other files"))


def test_another_spec_needs_a_yes(tmp_path, capsys):
    words = r"train.dataset_args was \{\}, is \{\"a\": 1\}, train.lr was 0.1, is 0.05; make resume"
    with pytest.raises(UserError, match=words):
        load_of(tmp_path, lr=0.05, dataset_args={"a": 1})
    spec = job_of(tmp_path, lr=0.05).run.dir.spec
    sha256 = hashlib.sha256(spec.read_bytes()).hexdigest()
    changes = RunDir(tmp_path).changes
    changed = (KeyChange("train.lr", (0.1, 0.05)),)
    records.append(changes, SpecChange(1.0, changed, "of another change"))
    with pytest.raises(UserError, match=r"train.lr was 0.1, is 0.05"):
        load_of(tmp_path, lr=0.05)
    records.append(changes, SpecChange(2.0, changed, sha256))
    assert load_of(tmp_path, lr=0.05).global_step == 6
    assert "changed on request: train.lr was 0.1, is 0.05" in capsys.readouterr().out


def test_keys_of_a_newer_kit_are_no_change():
    assert changed_keys({"lr": 0.1, "gone": 1}, {"lr": 0.1, "new": 2}) == []


def saved_values(replica, **changes):
    state = dataclasses.asdict(state_at(6))
    return {
        "model": replica.module.state_dict(),
        "optimizer": replica.optimizer.state_dict(),
        "optimizer_class": "AdamW",
        "scaler": {},
        "windows": torch.tensor([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]], dtype=torch.float64),
        "global_batch_size": 12,
        "samples_per_epoch": 96,
        "data_digest": None,
        "train": {},
        **{name: value for name, value in state.items() if name != "window"},
        **changes,
    }


def saved_state(replica, **changes):
    return SavedState.from_dict(saved_values(replica, **changes))


def test_the_keys_of_a_saved_state_stay_those_of_the_format(tmp_path):
    """Kits of one format read each other's checkpoints."""
    context = job_of(tmp_path)
    save(context, replica_of(), 6)
    with reader.Contents.open(context.run.dir.checkpoints / "step-00000006") as contents:
        values = parse(contents)
    assert [*values] == [
        *("model", "optimizer", "optimizer_class", "parameter_names", "scaler", "windows"),
        *("global_batch_size", "samples_per_epoch", "data_digest", "train"),
        *("global_step", "window_names", "last_eval_step", "evals_since_best", "epoch_sums"),
        *("metrics", "metrics_bytes", "environments", "best", "streams"),
    ]
    assert [*SavedState.from_dict(values).to_dict()] == [*values]
    del values["best"]
    with pytest.raises(UserError, match="has no 'best'.* another version of the kit"):
        SavedState.from_dict(values)


def test_a_checkpoint_of_the_format_with_state_pt_is_loaded(tmp_path):
    """The format before this one, which torch.save wrote."""
    context, replica = job_of(tmp_path), replica_of()
    root = context.run.dir.checkpoints
    save(context, replica, 6)
    values = saved_values(replica, windows=torch.ones(1, 3, dtype=torch.float64))
    commit.commit(root, state_pt(9, saved_by_torch(values)))
    fresh = replica_of(seed=1)
    assert loaded(context, fresh).window.tolist() == [1, 1, 1]
    assert bits(fresh) == bits(replica)


@pytest.mark.parametrize(
    ("rank", "world_size", "window"), [(1, 3, [2, 5]), (0, 2, [6, 15]), (1, 2, [0, 0])]
)
def test_windows_go_to_their_ranks_or_together_to_the_first(rank, world_size, window):
    replica = replica_of()
    state = restored_state(saved_state(replica), replica, context_of(rank, world_size))
    assert (state.window.tolist(), state.global_step) == (window, 6)


def test_a_window_of_other_metrics_is_dropped_where_the_user_changed_the_objective(tmp_path):
    context, replica = job_of(tmp_path), replica_of()
    save(context, replica, 6)
    replica.metric_names, replica.empty_row = (), lambda: torch.zeros(2, dtype=torch.float64)
    state = loaded(context, replica)
    assert (state.window.tolist(), state.window_names) == ([0, 0], ())


def test_values_that_a_stream_and_an_early_stop_need_come_back(tmp_path):
    context, replica = job_of(tmp_path), replica_of()
    position = {"num_samples": 7, "stream": {"generator": torch.arange(3), "at": [1, (2, None)]}}
    checkpoints = Checkpoints(context, BATCHES)
    checkpoints.save(replica, state_at(6, evals_since_best=2, streams=[position]))
    checkpoints.finish(lambda: None)
    state = loaded(context, replica)
    assert state.evals_since_best == 2
    generator = state.streams[0]["stream"].pop("generator")
    assert generator.tolist() == [0, 1, 2]
    assert state.streams == [{"num_samples": 7, "stream": {"at": [1, (2, None)]}}]


def test_a_checkpoint_of_another_model_or_optimizer_names_both_sides():
    replica, other = replica_of(), replica_of(width=4)
    words = r"model: 0.weight: \(4, 2\) there, \(3, 2\) in train.model"
    with pytest.raises(UserError, match=words):
        check_fits(saved_state(other), replica)
    more = {**replica.module.state_dict(), "x": torch.zeros(1)}
    with pytest.raises(UserError, match=r"model: x: \(1,\) there, none in train.model\n"):
        check_fits(saved_state(replica, model=more), replica)
    with pytest.raises(UserError, match="the state of SGD, but train.optimizer is AdamW"):
        check_fits(saved_state(replica, optimizer_class="SGD"), replica)


def test_rows_in_another_memory_format_are_read(tmp_path):
    """Such as the moments of a convolution in channels_last."""
    values = torch.arange(2 * 6 * 4 * 3 * 3, dtype=torch.float32).view(2 * 6, 4, 3, 3)
    stored = outline.lay_out({"x": values}, Sharding(1, 0))
    manifest = Manifest(3, attempt=1, files=())
    files = {
        "rank-00000.bin": lambda sink: outline.write_part({"x": values}, stored, 0, sink),
    }
    commit.commit(tmp_path, PendingCheckpoint(manifest, files, lambda: None))
    rows = torch.empty(5, 4, 3, 3).to(memory_format=torch.channels_last)
    with reader.Contents.open(tmp_path / "step-00000003") as contents:
        stored[0].read_into(contents, 6 * 4 * 3 * 3, rows)
    assert torch.equal(rows, values[6:11])


@pytest.mark.parametrize("lost", ["exp_avg", "all"])
def test_a_checkpoint_without_a_moment_is_refused(lost):
    replica = replica_of()
    values = saved_values(replica)
    check_moments(SavedState.from_dict(values), replica, Train())
    state = values["optimizer"]["state"]
    if lost == "all":
        del state[1]
    else:
        state[1] = {key: value for key, value in state[1].items() if key != lost}
    values["parameter_names"] = ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"]
    with pytest.raises(UserError, match="the checkpoint has no .*exp_avg.* for parameter 0.bias:"):
        check_moments(SavedState.from_dict(values), replica, Train())
    check_moments(SavedState.from_dict(values), replica, Train(static_graph=True))


@pytest.fixture
def trained(tmp_path):
    """A run directory with two checkpoints of which the older one is the best, and its replica."""
    context, replica = job_of(tmp_path / "trained"), replica_of()
    checkpoints = Checkpoints(context, BATCHES)
    checkpoints.save(replica, state_at(6, best={"metric": "eval_loss", "value": 1.0, "step": 6}))
    train(replica)
    best = {"metric": "eval_loss", "value": 1.0, "step": 6}
    checkpoints.save(replica, state_at(9, best=best))
    checkpoints.finish(lambda: None)
    return context.run.dir, replica


def test_a_new_run_begins_with_the_weights_of_another(trained, tmp_path, capsys):
    run_dir, replica = trained
    assert export.main([str(run_dir.path)]) == 0
    out = run_dir.path / "weights.safetensors"
    printed = capsys.readouterr()
    assert printed.out == f"{out}\n"
    assert "after step 9: train_loss 1.286\n" in printed.err and "not finished" in printed.err
    for path in (run_dir.path, run_dir.checkpoints / "step-00000009", out):
        fresh = replica_of(seed=1)
        context = job_of(tmp_path / "new", init_from=str(path))
        assert loaded(context, fresh).global_step == 0
        assert weights_sha256(fresh) == weights_sha256(replica)


def test_weights_that_two_layers_share_are_exported_and_stay_shared(tmp_path):
    """safetensors refuses tensors that share memory."""
    context, replica = job_of(tmp_path / "old"), replica_of()
    replica.module = GPT(vocab_size=7, block_size=4, n_layer=1, n_head=1, n_embd=4)
    replica.optimizer = torch.optim.AdamW(replica.module.parameters())
    save(context, replica, 6)
    out = tmp_path / "out.safetensors"
    assert export.main([str(context.run.dir.path), "--out", str(out)]) == 0
    assert safetensors.torch.load_file(out).keys() == replica.module.state_dict().keys()
    for path in (context.run.dir.path, out):
        fresh = replica_of()
        fresh.module = GPT(vocab_size=7, block_size=4, n_layer=1, n_head=1, n_embd=4)
        fresh.optimizer = torch.optim.AdamW(fresh.module.parameters())
        loaded(job_of(tmp_path / "new", init_from=str(path)), fresh)
        assert weights_sha256(fresh) == weights_sha256(replica)
        assert fresh.module.lm_head.weight is fresh.module.transformer.wte.weight


def test_weights_that_do_not_fit_name_the_first_difference(trained, tmp_path):
    run_dir, _ = trained
    context = job_of(tmp_path / "new", init_from=str(run_dir.path))
    words = r"init_from .*trained is of another model: 0.weight: \(3, 2\) there, \(4, 2\) in"
    with pytest.raises(UserError, match=words):
        loaded(context, replica_of(width=4))
    text = tmp_path / "x.safetensors"
    text.write_text("hello, this is no such file")
    for path, words in [
        (text, "x.safetensors is not a safetensors file"),
        (tmp_path / "gone", "train.init_from: cannot read .*gone: .*No such file"),
        (tmp_path, "has no checkpoint"),
    ]:
        context = job_of(tmp_path / "new", init_from=str(path))
        with pytest.raises(UserError, match=words):
            loaded(context, replica_of())


def test_an_export_is_of_the_checkpoint_that_is_meant(trained, tmp_path, capsys):
    run_dir, replica = trained
    out = tmp_path / "out.safetensors"
    for which, step in [("latest", "9"), ("best", "6"), ("step-00000006", "6")]:
        assert export.main([str(run_dir.path), "--checkpoint", which, "--out", str(out)]) == 0
        with safetensors.safe_open(out, "pt") as file:
            metadata = file.metadata()
        assert (metadata["global_step"], metadata["run_id"]) == (step, "trained")
    assert export.main([str(run_dir.checkpoints / "step-00000009"), "--out", str(out)]) == 0
    weights = safetensors.torch.load_file(out)
    assert torch.equal(weights["0.weight"], replica.module[0].weight)
    capsys.readouterr()
    assert export.main([str(run_dir.path), "--checkpoint", "step-00000007"]) == 2
    names = "it has step-00000009, step-00000006"
    assert f"no checkpoint step-00000007; {names}" in capsys.readouterr().err
    (run_dir.checkpoints / "best").unlink()
    assert export.main([str(run_dir.path), "--checkpoint", "best"]) == 2
    assert f"{run_dir.path} has no checkpoint best; {names}" in capsys.readouterr().err


def test_an_export_of_a_finished_run_has_no_warning(trained, capsys):
    run_dir, _ = trained
    for status, is_warned in [("held", True), ("completed", False)]:
        run_dir.result.write_text(json.dumps({"status": status}))
        assert export.main([str(run_dir.path), "--checkpoint", "best"]) == 0
        printed = capsys.readouterr().err
        assert ("not finished" in printed) == is_warned and "after step 6: train_loss" in printed


def test_an_export_of_a_damaged_checkpoint_writes_nothing(trained, capsys):
    run_dir, _ = trained
    path = run_dir.checkpoints / "step-00000009" / "rank-00000.bin"
    path.write_bytes(path.read_bytes()[:-1])
    assert export.main([str(run_dir.path)]) == 1
    assert "step-00000009 is damaged: rank-00000.bin has" in capsys.readouterr().err
    assert list(run_dir.path.glob("*safetensors*")) == [] and list(run_dir.path.glob(".*")) == []
    assert len(checkpoint_names(run_dir.checkpoints)) == 2


def test_the_digest_of_an_optimizer_changes_with_any_of_its_values():
    replica, again = replica_of(), replica_of()
    digest = optimizer_sha256(replica)
    assert digest == optimizer_sha256(again)
    replica.optimizer.state[replica.module[0].bias]["exp_avg"][1] += 1
    again.optimizer.state[again.module[0].bias]["step"] += 1
    assert len({digest, *(optimizer_sha256(each) for each in (replica, again))}) == 3


def test_a_mask_of_infinities_is_committed_as_the_buffer_that_it_is(tmp_path):
    context, replica = job_of(tmp_path), replica_of()
    replica.module.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
    save(context, replica, 6)
    assert checkpoint_names(context.run.dir.checkpoints) == ["step-00000006"]


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


def test_a_rank_that_waits_for_a_save_beats(tmp_path, gate, monkeypatch):
    monkeypatch.setattr(module, "POLL_S", 0.01)
    context, beats = job_of(tmp_path), []
    checkpoints = Checkpoints(context, BATCHES)
    checkpoints.save(replica_of(), state_at(6))

    def beat():
        beats.append(checkpoint_names(context.run.dir.checkpoints))
        if len(beats) == 5:
            gate.set()

    checkpoints.finish(beat)
    assert beats[:5] == [[]] * 5
    assert checkpoint_names(context.run.dir.checkpoints) == ["step-00000006"]
