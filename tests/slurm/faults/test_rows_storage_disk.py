"""The disk below a run is full, read-only, broken or gone (row 21)."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_job_kit.jobs.contract.checkpoint import reader
from tests.core.run_files import read_progress_steps

from ..cluster import Cluster
from ..host import IS_SITE
from ..kit import Run
from . import harm_storage, oracles
from .rows import Row
from .test_rows_storage import step_of

EVERY = "checkpoint.every_steps=2"
DISK_MIB = 160  # submit needs 64 MiB free


def assert_kept(run: Run, before: list[str], file: str = "") -> None:
    """The older checkpoint is intact, and the error was logged, for a whole one within a step."""
    assert set(before) <= set(harm_storage.committed(run.dir))
    reader.check(run.dir.checkpoints / before[0])
    said = run.dir.job_log.read_text() + run.log()
    what = f"{file} of checkpoint" if file else "checkpoint"
    (failed,) = set(re.findall(rf"saving {what} \S+/(step-\d+)", said))
    assert file or (read_progress_steps(run.dir.progress)[0] or 0) <= step_of(failed) + 1


SHARD = "rank-00001.safetensors"
sharded = pytest.mark.plugin("sharded")


@pytest.mark.parametrize(
    ("name", "strategy", "file"),
    [
        *(("EIO", "ddp", ""), ("EDQUOT", "ddp", ""), ("EROFS", "ddp", "")),
        pytest.param("ENOSPC", "fsdp", SHARD, marks=sharded),  # the disk of one node
        pytest.param("EIO", "fsdp", SHARD, marks=sharded),
    ],
)
def test_row_21_a_save_meets_an_error(
    row: Row, tmp_path: Path, name: str, strategy: str, file: str
) -> None:
    """An error that may pass is retried at once; one that a user must repair waits for a resume."""
    errno, of_strategy = tmp_path / "errno", f"train.strategy={strategy}"
    words = (EVERY, "checkpoint.keep_last=99", f"launch.env.ERRNO_FILE={errno}", of_strategy)
    paced = row.start(*words)
    run = paced.run
    run.wait_for_events("save", 2)
    before = harm_storage.committed(run.dir)
    errno.write_text(f"{name} {file}")
    if name == "EIO":
        run.wait_for_attempts()
        assert run.attempts()[0]["decision"] == "retry"
        assert_kept(run, before, file)  # long before the next attempt does a step
    else:
        run.wait("FAILED")
        assert_kept(run, before, file)
        result = run.result()
        assert result["status"] == "held" and "then resume" in result["reason"], result
        assert "\n" not in result["reason"]
        errno.unlink()
        paced = replace(paced, run=row.kit.resume(run))
    assert f"saving {file}" in run.attempts()[0]["evidence"]["error"]
    paced.finish()
    oracles.ended(
        run, row.reference(of_strategy) if file else row.reference(), ["crash", "completed"]
    )
    oracles.at_most_one_interval(run)


Repair = Callable[[], object]


def fill(run: Run) -> Repair:
    return harm_storage.fill(run.dir.path.parent.parent).unlink


def move_away(run: Run) -> Repair:
    elsewhere = run.dir.path.with_name("moved")
    run.dir.path.rename(elsewhere)
    return lambda: elsewhere.rename(run.dir.path)


def are_all_seeing(cluster: Cluster, run: Run) -> bool:
    argv = ("test", "-d", run.dir.path)
    return not any(cluster.run_on(node, *argv, check=False).returncode for node in cluster.nodes)


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(fill, marks=pytest.mark.skipif(IS_SITE, reason="its file handles are others")),
        move_away,
    ],
)
def test_row_21_a_disk_is_full_or_a_directory_gone(
    row: Row, cluster: Cluster, tmp_path: Path, harm: Callable[[Run], Repair]
) -> None:
    baseline = row.reference()
    pace = tmp_path / "pace"
    pace.touch()
    folder = tmp_path / "disk"
    place = harm_storage.small_disk(folder, DISK_MIB) if harm is fill else nullcontext(folder)
    with place as disk:
        cluster.restart()
        row.kit = replace(row.kit, runs_root=disk)
        paced = row.start(EVERY, "checkpoint.keep_last=99", pace=pace)
        run = paced.run
        run.wait_for_events("save", 2)
        before = harm_storage.committed(run.dir)
        repair = harm(run)
        run.wait("FAILED")
        run.wait_for(lambda: not run.cluster.job_processes(), "no process", 60)
        repair()
        # A node that looked for the directory meanwhile may miss it for as long as its file client
        # keeps a missing name. Until then its slurmd starts no job there: JobLaunchFailure.
        cluster.wait_for(lambda: are_all_seeing(cluster, run), "the run on every node", 90)
        assert_kept(run, before)
        paced = replace(paced, run=row.kit.resume(run))
        paced.finish()
        # The batch shell may have no file to which it could record the attempt.
        first = run.attempts()[0]["cause"]
        assert first in ("crash", "lost"), first
        oracles.ended(run, baseline, [first, "completed"])
        oracles.at_most_one_interval(run)
        row.ask_why()  # later the disk is gone
        cluster.restart()  # the nodes' mount trees hold the disk, too
