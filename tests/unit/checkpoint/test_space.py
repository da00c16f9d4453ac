"""Whether the checkpoints that are kept fit on the disk and into the quota."""

import os
import shutil
from types import SimpleNamespace

import pytest

from slurm_job_kit.jobs.spec import Checkpoint
from slurm_job_kit.trainer.checkpoint import space

MIB = 2**20
HEADER = "Disk quotas for user me (uid 1000): \n     Filesystem blocks quota limit grace files\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder on a file system of 100 GiB; `mount(kind)` says of which kind it is."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100 * 2**30))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    mounts = tmp_path / "mounts"
    monkeypatch.setattr(space, "MOUNTS", mounts)

    def mount(kind, command, text, status=0):
        here = f"server:/home {tmp_path} {kind} rw 0 0"
        elsewhere = f"server:/other /{'x' * 300} {kind} rw 0 0"
        mounts.write_text(f"/dev/root / ext4 rw 0 0\n{here}\n{elsewhere}\n")
        (tmp_path / command).write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {status}\n")
        (tmp_path / command).chmod(0o755)
        (tmp_path / "checkpoints").mkdir()
        return tmp_path / "checkpoints"

    return mount


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("server:/home 1024 4096 8192 - 7 0 0", 7 * MIB),
        ("server:/home 9000* 4096 8192 6days 7 0 0", 0),
        ("server:/home 1024 0 0 - 7 0 0", None),
        ("server:/other 1024 4096 8192 - 7 0 0", None),
        ("none", None),
    ],
)
def test_the_quota_of_the_file_system_of_the_run(place, line, left):
    assert space.quota_left(place("nfs4", "quota", HEADER + line, status=1)) == left


@pytest.mark.parametrize("space_behind_path", ["   ", "\n               "])
def test_the_quota_of_lustre(place, tmp_path, space_behind_path):
    """lfs breaks the line behind a long path."""
    line = f"   {tmp_path}{space_behind_path}1024   0   8192   -   7   0   0   -"
    folder = place("lustre", "lfs", line)
    assert space.quota_left(folder) == 7 * MIB


def test_without_a_command_there_is_no_quota(place, monkeypatch):
    folder = place("nfs4", "other", "")
    monkeypatch.setenv("PATH", str(folder))
    assert space.quota_left(folder) is None


@pytest.mark.parametrize(
    ("size", "found"), [(1, None), (3 * MIB, False), (4 * MIB, True), (60 * 2**30, True)]
)
def test_what_does_not_fit_into_the_quota(place, size, found):
    folder = place("nfs4", "quota", "server:/home 1024 4096 8192 - 7 0 0")
    short = space.shortage(folder, size, num_kept=2)
    assert (short and short.is_error) == found
    assert short is None or "quota" in short.what


def test_the_checkpoints_of_this_run_count_as_space_for_its_checkpoints(place):
    folder = place("nfs4", "quota", "server:/home 1024 4096 8192 - 7 0 0")
    own = folder / "step-00000001"
    own.mkdir()
    os.truncate(os.open(own / "state.bin", os.O_CREAT | os.O_RDWR), 3 * MIB)
    assert space.shortage(folder, 3 * MIB, num_kept=2) is None


def test_how_many_checkpoints_are_kept():
    assert space.num_kept(Checkpoint(best=None), 100, 10) == 2
    assert space.num_kept(Checkpoint(keep_last=1), 100, 10) == 2
    every = Checkpoint(best=None, keep_every_steps=30, keep_every_epochs=4)
    assert space.num_kept(every, 100, 10) == 2 + 3 + 2
