"""Checkpoints are ordered by their step, also where their names have different lengths."""

import itertools
import os
from pathlib import Path

import pytest

from slurm_job_kit.jobs.checkpoint.names import (
    checkpoint_name,
    checkpoint_names,
    checkpoint_step,
    is_newer,
)
from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.runs import checkpoint_lookup, script_files
from tests.unit import file_operations, run_files

STEPS = [0, 99_999_998, 99_999_999, 100_000_000, 100_000_001, 1_000_000_000]


@pytest.fixture
def run(tmp_path):
    return run_files.frozen(tmp_path / "run")


def test_a_name_and_its_step_belong_together():
    assert [checkpoint_step(checkpoint_name(step)) for step in STEPS] == STEPS
    for name in ("step-1", ".tmp-step-00000001", "quarantined-step-00000001", "step-00000001.2"):
        assert checkpoint_step(name) is None


def test_the_newest_checkpoint_has_the_highest_step(run):
    for step in STEPS:
        (run.checkpoints / checkpoint_name(step)).mkdir()
        assert checkpoint_lookup.newest(run, is_users=False) == checkpoint_name(step)
    (run.checkpoints / "latest").touch()
    assert checkpoint_names(run.checkpoints) == [checkpoint_name(step) for step in STEPS[::-1]]


def test_of_two_checkpoints_the_one_of_the_higher_step_is_newer():
    for older, newer in itertools.pairwise([None, *map(checkpoint_name, STEPS)]):
        assert is_newer(newer, older)
        assert not is_newer(older, newer)
        assert not is_newer(newer, newer)


def test_damaged_checkpoints_are_listed_from_the_oldest_step_on(run):
    names = ["step-00000007", "step-00000007.2", "step-99999999", "step-100000000"]
    for name in names:
        (run.checkpoints / f"quarantined-{name}").mkdir()
    assert checkpoint_lookup.quarantined_names(os.listdir(run.checkpoints)) == [
        f"quarantined-{name}" for name in names
    ]


def test_a_run_without_a_folder_of_checkpoints_has_none(tmp_path):
    assert checkpoint_lookup.newest(RunDir(tmp_path / "gone"), is_users=False) is None


@pytest.mark.parametrize("folder", ["", "out/checkpoint-500", "outputs/day/time/checkpoints"])
def test_a_snapshot_of_a_script_counts_in_folders_of_its_working_directory(run, folder):
    (run.work / folder).mkdir(parents=True)
    (run.work / folder / "events.log").touch()
    assert checkpoint_lookup.newest(run, is_users=True) is None
    (run.work / folder / "model.safetensors").touch()
    newest = checkpoint_lookup.newest(run, is_users=True)
    assert newest is not None and newest.endswith(str(Path("work", folder, "model.safetensors")))


def state(path, size=200):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


@pytest.mark.parametrize(
    "name",
    [
        *("work/a.pth.tar", "work/out/epoch_3/__0_0.distcp", "work/pytorch_model.bin"),
        *("work/arrays.npz", "work/state", "work/a/b/c/d/e/f/g/h/last.pt", "work/x.weird"),
        *("work/outputs/2026-01-01/12-00-00/ckpt/7", "model.pt", "mine/deep/state"),
        *("checkpoints/state.json", "checkpoints/sub/shard-0", "work/model.out.pt"),
    ],
)
def test_what_a_script_saves_is_a_checkpoint_whatever_its_name_and_depth(run, name):
    run.work.mkdir()
    assert checkpoint_lookup.newest(run, is_users=True) is None
    state(run.path / name)
    assert str(checkpoint_lookup.newest(run, is_users=True)).endswith(f" {name}")


@pytest.mark.parametrize(
    "name",
    [
        *(
            "work/train.log",
            "work/train.log.1",
            "work/metrics.jsonl",
            "work/loss.csv",
            "work/1.png",
        ),
        *("work/events.out.tfevents.17.n1.42.0", "work/tb/events.out.tfevents.17.n1.42.0"),
        *("work/wandb/run-1/run-1.wandb", "work/lib/__pycache__/x.cpython-311.pyc", "work/core.71"),
        *("work/.hydra/config.bin", "work/x.pt.tmp", "checkpoints/x.tmp", "checkpoints/train.log"),
        *("attempt-1/x.pt", "job.log", "slurm-7.out", "report.html", "wandb/x/y.wandb"),
        *("tensorboard/profile/trace", "submitit/7.sh", "timeline/x.jsonl", "logs/x", "cancelled"),
    ],
)
def test_logs_caches_and_files_of_the_kit_are_no_checkpoints(run, name):
    state(run.path / name)
    assert checkpoint_lookup.newest(run, is_users=True) is None


def test_a_flag_is_no_checkpoint(run):
    state(run.work / "started", 20)
    assert checkpoint_lookup.newest(run, is_users=True) is None


def test_a_checkpoint_in_a_folder_of_launch_outputs_counts_once_it_changes(run, tmp_path):
    elsewhere = tmp_path / "scratch/me"
    state(elsewhere / "old/state.distcp")
    os.utime(elsewhere / "old/state.distcp", (1, 1))
    run.spec_yaml.touch()  # frozen after that
    outputs = [str(elsewhere), "../../gone"]
    assert checkpoint_lookup.newest(run, True, outputs=outputs) is None
    state(elsewhere / "new/step_9/state.distcp")
    newest = checkpoint_lookup.newest(run, True, outputs=outputs)
    assert newest is not None and newest.endswith(f" {elsewhere}/new/step_9/state.distcp")
    os.utime(elsewhere / "old/state.distcp", (2e9, 2e9))
    assert is_newer(checkpoint_lookup.newest(run, True, outputs=outputs), newest)


def test_a_linked_folder_is_walked_once(run, tmp_path):
    state(tmp_path / "scratch/state.bin")
    run.work.mkdir()
    (run.work / "out").symlink_to(tmp_path / "scratch")
    (tmp_path / "scratch/self").symlink_to(tmp_path / "scratch")
    assert str(checkpoint_lookup.newest(run, is_users=True)).endswith(" work/out/state.bin")


def test_a_large_data_set_beside_the_checkpoints_costs_a_bounded_number_of_lookups(
    run, monkeypatch
):
    monkeypatch.setattr(script_files, "MAX_NAMES", 300)
    monkeypatch.setattr(script_files, "MAX_NAMES_OF_FOLDER", 100)
    for number in range(500):
        state(run.work / f"data/{number % 5}/{number}.npy")
        os.utime(run.work / f"data/{number % 5}/{number}.npy", (1, 1))
    for folder in run.work.glob("data/*"):
        os.utime(folder, (1, 1))
    state(run.work / "saved/deep/last.pt")  # folders that changed last come first
    with file_operations.watched(run.path) as operations:
        assert str(checkpoint_lookup.newest(run, is_users=True)).endswith(
            " work/saved/deep/last.pt"
        )
    assert sum(operations.values()) < 500


def test_a_link_in_the_working_directory_is_no_snapshot(run, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/weights.pt").touch()
    run.work.mkdir()
    (run.work / "weights.pt").symlink_to(tmp_path / "elsewhere/weights.pt")
    (run.work / "data").symlink_to(tmp_path / "elsewhere")
    run.spec_yaml.touch()
    os.utime(tmp_path / "elsewhere/weights.pt", (1, 1))
    assert checkpoint_lookup.newest(run, is_users=True) is None
