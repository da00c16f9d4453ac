"""No rank makes progress: hangs, a repeated crash, a suspended job (rows 22, 24, 34, 41, 47)."""

import time
from pathlib import Path

import pytest

from ..kit import Run
from . import harm_processes, oracles
from .rows import Row
from .test_rows_slurm import on_every_proctrack

phases = pytest.importorskip(
    "slurm_job_kit.trainer.plugins.health.phases", reason="the plugin health is not here"
)
OFTEN = "checkpoint.every_steps=3"
HANG_TIMEOUT_S = 10
# Ticks, the reports of the other ranks and the verdict; most of it is for a busy machine.
VERDICT_S = 30
# The limits of the start-up are several times as long.
START_UP_TIMEOUT_S = 5
SUSPENDED_S = 60
STANDS_STILL = "TtD"  # stopped, traced, or frozen in its cgroup


def assert_found(run: Run, since: float, text: str, limit_s: float = HANG_TIMEOUT_S) -> None:
    """The hang was found in time, its error contains `text`, and the other ranks left stacks."""
    run.wait_for_attempts()
    record = run.attempts()[0]
    assert text in record["evidence"]["error"]
    assert f"(limit {limit_s:.0f} s)" in record["evidence"]["error"]
    found_at = (run.dir.attempt(1).hang).stat().st_mtime
    assert found_at - since < limit_s + VERDICT_S
    for rank in (0, 2):
        log = run.dir.attempt(1).rank_log(rank).read_text()
        assert f"rank {rank}: no progress for" in log and "its stacks:" in log


def test_row_22_hang_of_a_stopped_rank(row: Row) -> None:
    paced = row.begin(OFTEN, f"launch.hang_timeout_s={HANG_TIMEOUT_S}", step=4)
    stopped, since = harm_processes.stop_rank(paced.run, 1), time.time()
    paced.hurry()
    named = f"rank 1 on {stopped.node} (pid {stopped.pid}) does not answer"
    assert_found(paced.run, since, named)
    assert harm_processes.is_gone(stopped)
    paced.finish()
    oracles.retried(paced.run, row.reference(), "hang")


def test_row_22_hang_of_a_rank_in_a_loop(row: Row, tmp_path: Path) -> None:
    trouble = (f"launch.env.TROUBLE_FOLDER={tmp_path}", f"launch.hang_timeout_s={HANG_TIMEOUT_S}")
    paced = row.begin(OFTEN, *trouble, step=4)
    looping = harm_processes.rank(paced.run, 1)
    since = time.time()
    (tmp_path / "1").touch()
    assert_found(paced.run, since, f"rank 1 on {looping.node} (pid {looping.pid}) is at ")
    assert "loop_for_ever" in paced.run.attempts()[0]["evidence"]["error"]
    assert harm_processes.is_gone(looping)
    paced.finish()
    oracles.retried(paced.run, row.reference(), "hang")


@on_every_proctrack
def test_row_34_suspended_job_is_no_hang(row: Row, proctrack: str) -> None:
    paced = row.begin(f"launch.hang_timeout_s={HANG_TIMEOUT_S}", step=3)
    run = paced.run
    # With pgid Slurm stops agents and torchruns only: ranks have their own sessions, and continue.
    suspended = harm_processes.of_role(run, "torchrun" if proctrack == "pgid" else "rank")
    assert len(suspended) == 3
    harm_processes.suspend(run)
    run.wait("SUSPENDED")

    def stand_still() -> bool:
        return all(harm_processes.state_of(p.pid) in STANDS_STILL for p in suspended)

    run.wait_for(stand_still, f"{suspended} standing still", 30)
    # The test waits several times the limit of a hang; nothing may happen.
    deadline = time.monotonic() + SUSPENDED_S
    while time.monotonic() < deadline:
        assert stand_still(), [(p, harm_processes.state_of(p.pid)) for p in suspended]
        time.sleep(1)
    harm_processes.resume(run)
    paced.finish()
    assert not run.dir.attempt(1).hang.exists() and "no progress" not in run.log()
    oracles.went_on(run, row.reference())


def test_row_41_hang_of_a_data_sets_constructor(row: Row, tmp_path: Path) -> None:
    data = "train.dataset=tests.slurm.faults.model:images"
    trouble = (
        f"launch.env.TROUBLE_FOLDER={tmp_path}",
        f"launch.hang_timeout_s={START_UP_TIMEOUT_S}",
    )
    (tmp_path / "1").touch()
    paced = row.start(data, OFTEN, *trouble)
    paced.run.wait_for_events("init", 3)
    looping, since = harm_processes.rank(paced.run, 1), time.time()
    named = f"in data: rank 1 on {looping.node} (pid {looping.pid}) is at "
    assert_found(paced.run, since, named, phases.limit_s("data", START_UP_TIMEOUT_S))
    assert "loop_for_ever, in data" in paced.run.attempts()[0]["evidence"]["error"]
    assert harm_processes.is_gone(looping)
    paced.finish()
    oracles.retried(paced.run, row.reference(data), "hang")


def test_row_41_hang_of_a_rank_that_is_stopped_before_the_first_step(
    row: Row, tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    held = (f"launch.env.START_FILE={hold}", f"launch.hang_timeout_s={START_UP_TIMEOUT_S}")
    paced = row.start(OFTEN, *held)
    paced.run.wait_for_events("data", 3)
    stopped, since = harm_processes.stop_rank(paced.run, 1), time.time()
    hold.unlink()
    named = f"in model: rank 1 on {stopped.node} (pid {stopped.pid}) does not answer"
    assert_found(paced.run, since, named, phases.limit_s("model", START_UP_TIMEOUT_S))
    assert harm_processes.is_gone(stopped)
    paced.finish()
    oracles.retried(paced.run, row.reference(), "hang")


# The rank on one node leaves the others alone in a collective of its first attempt.
SCRIPT = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
print("met", flush=True)
dist.all_reduce(torch.ones(1))
if (os.environ["KIT_NODE"], os.environ["KIT_ATTEMPT"]) == ("n2", "1"):
    time.sleep(10**6)
dist.all_reduce(torch.ones(1))
os._exit(0)
"""


@pytest.mark.plugin("scripts")
def test_row_47_a_script_that_hangs_on_one_node(row: Row, tmp_path: Path) -> None:
    script = tmp_path / "outside/hangs.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    # Longer: the script prints nothing while it imports torch.
    words = (f"launch.script={script}", f"launch.hang_timeout_s={4 * START_UP_TIMEOUT_S}")
    nodes = ("slurm.nodes=3", "slurm.sbatch_args.nodelist=n[1-3]")
    run = row.kit.submit("configs/own_script.yaml", *words, *nodes)
    row.record(run)
    run.wait()
    oracles.closed(run, ["hang", "completed"], 0)
    logs = [run.dir.attempt(1).rank_log(rank).read_text() for rank in range(3)]
    assert all("Fatal Python error: Aborted" in log and "hangs.py" in log for log in logs)
    assert sum('hangs.py", line 8' in log for log in logs) == 1
