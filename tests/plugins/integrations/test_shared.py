"""What the integrations share: whole checkpoints, the position in the data, the generators.

tests/plugins/integrations/test_by_kit.py trains by the libraries themselves.
"""

import errno
import json
import os
import random
import signal
import sys

import numpy
import pytest
import torch
from torch.utils.data import DataLoader

from slurm_job_kit.jobs.base import files
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.training import SavedCheckpoint
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.trainer.plugins.integrations import whole
from slurm_job_kit.trainer.plugins.integrations.batches import ResumableBatches
from slurm_job_kit.trainer.plugins.integrations.keeper import Keeper
from tests.core.test_layout import foreign, reached


@pytest.fixture
def root(tmp_path):
    """A folder with the whole checkpoints of steps 9 and 10, each of two files."""
    for step in (9, 10):
        folder = whole.new_folder(tmp_path, step)
        (folder / "inner").mkdir()
        (folder / "weights").write_bytes(b"w" * step)
        (folder / "inner/state").write_bytes(b"s")
        whole.commit(tmp_path, step)
    return tmp_path


def test_the_newest_whole_checkpoint_is_taken_and_older_ones_are_deleted(root):
    assert whole.newest(root) == root / "checkpoint-10"
    whole.new_folder(root, 11)
    assert whole.newest(root) == root / "checkpoint-10"  # 11 is not complete
    whole.commit(root, 11)
    assert whole.names(root) == ["checkpoint-11", "checkpoint-10"]


def flip_a_bit(folder):
    (folder / "weights").write_bytes(b"w" * 9 + b"v")


HARMS = {
    "a flipped bit": flip_a_bit,
    "a file cut short": lambda folder: (folder / "inner/state").write_bytes(b""),
    "a missing file": lambda folder: (folder / "weights").unlink(),
    "no check sums": lambda folder: (folder / whole.WHOLE).unlink(),
    "half of the check sums": lambda folder: (folder / whole.WHOLE).write_text('{"files": {"we'),
    "check sums of another kind": lambda folder: (folder / whole.WHOLE).write_text("[]"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_checkpoint_is_put_aside_and_the_next_older_one_taken(root, harm, capsys):
    HARMS[harm](root / "checkpoint-10")
    assert whole.newest(root) == root / "checkpoint-9"
    assert "checkpoint-10 is not whole and now quarantined-checkpoint-10" in capsys.readouterr().out
    assert (root / "quarantined-checkpoint-10").is_dir()
    assert whole.newest(root) == root / "checkpoint-9"


def test_a_disk_with_an_error_puts_no_checkpoint_aside(root, monkeypatch):
    def fail(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(files, "open_binary", fail)
    with pytest.raises(OSError, match="Input/output error"):
        whole.newest(root)
    assert whole.names(root) == ["checkpoint-10", "checkpoint-9"]


def sampler(monkeypatch, rank=0, world_size=1, **options):
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world_size))
    return ResumableBatches(25, 4, **options)


def test_the_ranks_share_each_epoch_without_the_rest(monkeypatch):
    ranks = [sampler(monkeypatch, rank, 2) for rank in (0, 1)]
    split_later = sampler(monkeypatch, 1, 2, is_split=False)
    orders: list[list[int]] = []
    for _ in range(2):
        parts = [list(each) for each in ranks]
        assert [len(part) for part in parts] == [3, 3] == [len(each) for each in ranks]
        in_turn = [batch for both in zip(*parts, strict=True) for batch in both]
        assert in_turn == list(split_later) and len(split_later) == 6
        orders.append(sum(in_turn, []))
        assert len(set(orders[-1])) == 24
    assert orders[0] != orders[1]


def test_fewer_samples_than_a_batch_of_every_rank_are_an_error(monkeypatch):
    with pytest.raises(ValueError, match="25 samples make no batch of 4 for each of 7 ranks"):
        sampler(monkeypatch, 0, 7)
    assert len(sampler(monkeypatch, 0, 6)) == 1


def test_a_training_without_a_step_is_not_complete(monkeypatch, tmp_path):
    exits: list[int] = []
    monkeypatch.setattr(os, "_exit", exits.append)
    batches = sampler(monkeypatch)
    with pytest.raises(ValueError, match="ends after 0 steps"):
        Keeper(tmp_path, batches=batches).completed()
    checkpoint = save_state(Keeper(tmp_path, batches=batches), tmp_path)
    resumed = Keeper(tmp_path, batches=batches)
    resumed.restore(checkpoint)  # of the last step, and no step is left
    resumed.watch()
    resumed.completed()
    assert exits == [0]


class Noisy(torch.utils.data.Dataset[float]):
    """Each sample is of the three generators."""

    def __getitem__(self, index):
        return index + random.random() + numpy.random.rand() + torch.rand(()).item()


def save_state(keeper, folder):
    keeper.step += 1
    keeper.save(lambda path: None)
    return folder / f"checkpoint-{keeper.step}"


@pytest.mark.parametrize("is_end_skipped", [False, True])
@pytest.mark.parametrize("num_trained", [2, 6, 8])
def test_a_resume_draws_the_same_numbers_also_in_the_data_set(
    monkeypatch, tmp_path, num_trained, is_end_skipped
):
    """6 is the end of an epoch."""
    batches = sampler(monkeypatch)
    keeper = Keeper(tmp_path, batches=batches)
    loader = DataLoader(Noisy(), batch_sampler=batches)
    trained = []
    for _ in range(3):
        for batch in loader:
            trained.append([*batch.tolist(), torch.rand(()).item()])
            keeper.count_batch()
            if len(trained) == num_trained:
                checkpoint = save_state(keeper, tmp_path)

    torch.manual_seed(9)
    random.seed(9)
    resumed = sampler(monkeypatch)
    keeper, again = Keeper(tmp_path, batches=resumed), []
    assert keeper.newest() == checkpoint
    keeper.restore(checkpoint, is_end_skipped)
    loader = DataLoader(Noisy(), batch_sampler=resumed)
    for _ in range(keeper.epoch, 3):
        again += [[*batch.tolist(), torch.rand(()).item()] for batch in loader]
    assert again == trained[num_trained:]


def test_a_checkpoint_of_other_ranks_is_refused(monkeypatch, tmp_path):
    checkpoint = save_state(Keeper(tmp_path), tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ValueError, match="is of 1 ranks, not of 2"):
        Keeper(tmp_path).restore(checkpoint)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The directory of a run under the kit; signal handlers are restored afterwards."""
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in numbers]
    run = RunDir(tmp_path)
    for folder in (run.attempt(1).path, run.checkpoints, tmp_path / "timeline"):
        folder.mkdir()
    monkeypatch.setenv("KIT_STOP_FILE", str(run.attempt(1).stop_requested))
    monkeypatch.setenv("KIT_CHECKPOINT_DIR", str(run.checkpoints))
    monkeypatch.setattr(os, "_exit", sys.exit)
    yield run
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_a_warned_training_saves_reports_and_leaves(run):
    keeper = Keeper(every=1, save_every=2)
    for keeper.step in (1, 2):
        keeper.after_step(9, lambda folder: None, {"loss": 0.5})
    assert whole.names(run.checkpoints) == ["checkpoint-2"]
    signal.raise_signal(signal.SIGTERM)
    keeper.step = 3
    with pytest.raises(SystemExit) as left:
        keeper.after_step(9, lambda folder: (folder / "w").touch(), {"loss": torch.tensor(0.25)})
    assert left.value.code == 0
    assert files.read_json(run.attempt(1).outcome) == {"status": "stopped", "global_step": 3}
    assert records.read(SavedCheckpoint, run.saved) == SavedCheckpoint(step=3)
    progress = {"step": 3, "total": 9, "metrics": {"loss": 0.25}}
    assert json.loads(run.progress.read_text()) == progress
    digests = json.loads((run.checkpoints / "checkpoint-3" / whole.WHOLE).read_text())["files"]
    assert sorted(digests) == ["kit-rank-00000.pt", "w"]


@pytest.mark.parametrize("library", ["accelerate", "fabric", "lightning", "transformers"])
def test_an_integration_needs_its_own_library_only(library):
    name = "lightning" if library == "fabric" else library
    assert foreign(reached(f"trainer.plugins.integrations.{library}")) == {"torch", name}
