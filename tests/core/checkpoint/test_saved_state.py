"""What a saved state holds, and which data, spec, model and optimizer it fits."""

import hashlib

import pytest
import torch

from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.checkpoint import reader
from slurm_job_kit.jobs.contract.records.frozen import SpecChange
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.trainer.checkpoint import outline
from slurm_job_kit.trainer.checkpoint.checkpoints import Checkpoints
from slurm_job_kit.trainer.checkpoint.digest import optimizer_sha256
from slurm_job_kit.trainer.checkpoint.loading import ReadAhead
from slurm_job_kit.trainer.checkpoint.saved_state import SavedState, check_fits, restored_state
from slurm_job_kit.trainer.errors import UserError
from tests.core.checkpoint.checkpoint_kit import (
    BATCHES,
    data_of,
    job_of,
    loaded,
    replica_of,
    save,
    saved_values,
)
from tests.core.ranks import place_of

pytestmark = pytest.mark.usefixtures("process_group")


def load_of(tmp_path, batches=BATCHES, **train):
    """Load what a training with default settings has saved, with other settings."""
    save(job_of(tmp_path), replica_of(), 6)
    context = job_of(tmp_path, **train)
    return Checkpoints(context, batches).load(replica_of(seed=1), ReadAhead(context))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"global_batch_size": 16}, "of 12, this start has 16: .*global_batch_size to 12$"),
        ({"samples_per_epoch": 84}, "with 96 samples per epoch, this start has 84: bring back"),
        ({"digest": "of other files"}, "of train.dataset digits differ from those of the save"),
    ],
)
def test_other_data_are_refused_with_both_sides_and_the_fix(tmp_path, data, words):
    with pytest.raises(UserError, match=words):
        load_of(tmp_path, data_of(**data))


def test_another_spec_needs_a_yes(tmp_path, capsys):
    words = r"train.dataset_args was \{\}, is \{\"a\": 1\}, train.lr was 0.1, is 0.05; make resume"
    with pytest.raises(UserError, match=words):
        load_of(tmp_path, lr=0.05, dataset_args={"a": 1})
    spec = job_of(tmp_path, lr=0.05).run.dir.spec
    sha256 = hashlib.sha256(spec.read_bytes()).hexdigest()
    changes = RunDir(tmp_path).changes
    changed = {"train.lr": (0.1, 0.05)}
    records.append(changes, SpecChange(1.0, changed, "of another change"))
    with pytest.raises(UserError, match=r"train.lr was 0.1, is 0.05"):
        load_of(tmp_path, lr=0.05)
    records.append(changes, SpecChange(2.0, changed, sha256))
    assert load_of(tmp_path, lr=0.05).global_step == 6
    assert "changed on request: train.lr was 0.1, is 0.05" in capsys.readouterr().out


def saved_state(replica, **changes):
    return SavedState.from_dict(saved_values(replica, **changes))


def test_the_keys_of_a_saved_state_stay_those_of_the_format(tmp_path):
    """Kits of one format read each other's checkpoints."""
    context = job_of(tmp_path)
    save(context, replica_of(), 6)
    values = outline.read(reader.Contents.open(context.run.dir.checkpoints / "step-00000006"))
    assert [*values] == [
        *("model", "optimizer", "optimizer_class", "scaler", "windows"),
        *("global_batch_size", "samples_per_epoch", "data_digest", "train"),
        *("global_step", "window_names", "last_eval_step", "evals_since_best", "epoch_sums"),
        *("metrics", "metrics_bytes", "environments", "best", "streams"),
    ]
    del values["best"]
    with pytest.raises(UserError, match="has no 'best'.* another version of the kit"):
        SavedState.from_dict(values)


@pytest.mark.parametrize(
    ("rank", "world_size", "window"), [(1, 3, [2, 5]), (0, 2, [6, 15]), (1, 2, [0, 0])]
)
def test_windows_go_to_their_ranks_or_together_to_the_first(rank, world_size, window):
    replica = replica_of()
    state = restored_state(saved_state(replica), replica, place_of(rank, world_size))
    assert (state.window.tolist(), state.global_step) == (window, 6)


def test_a_window_of_other_metrics_is_dropped_where_the_user_changed_the_objective(tmp_path):
    context, replica = job_of(tmp_path), replica_of()
    save(context, replica, 6)
    replica.metric_names, replica.empty_row = (), lambda: torch.zeros(2, dtype=torch.float64)
    state = loaded(context, replica)
    assert (state.window.tolist(), state.window_names) == ([0, 0], ())


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


def test_the_digest_of_an_optimizer_changes_with_any_of_its_values():
    replica, again = replica_of(), replica_of()
    digest = optimizer_sha256(replica)
    assert digest == optimizer_sha256(again)
    replica.optimizer.state[replica.module[0].bias]["exp_avg"][1] += 1
    again.optimizer.state[again.module[0].bias]["step"] += 1
    assert len({digest, *(optimizer_sha256(each) for each in (replica, again))}) == 3
