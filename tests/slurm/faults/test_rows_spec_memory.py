"""A rank allocates more memory than its job has (row 29)."""

import pytest

from slurm_job_kit.jobs.base.files import read_jsonl

from ..cluster import Cluster
from ..host import installed_version
from ..kit import Run
from . import oracles
from .rows import Row

# Settings of a site that enforces the memory limit of jobs; cgroup.conf has ConstrainRAMSpace.
LIMITED = "TaskPlugin=task/cgroup\nSelectTypeParameters=CR_Core_Memory"
if installed_version() >= (24, 11):
    LIMITED += "\nTaskPluginParam=OOMKillStep"  # with cgroup v2 the agents would be killed, too


def run_twice(row: Row, *words: str) -> Run:
    """A run whose first attempt fails, and that has completed."""
    paced = row.start(*words, "checkpoint.every_steps=1")
    # At the pace, a save ends before the next one is due.
    paced.run.wait_for_attempts()
    paced.finish()
    return paced.run


def test_row_29_an_allocation_fails(row: Row) -> None:
    run = run_twice(row, 'launch.env.EATING="allocator 1"')
    first = run.attempts()[0]
    assert first["decision"] == "retry" and "can't allocate memory" in first["reason"]
    assert (
        "hint: give the job more memory, or use a smaller train.micro_batch_size"
        in run.dir.job_log.read_text()
    )
    oracles.retried(run, row.reference(), "out_of_memory")


def test_row_29_memory_that_is_never_enough_is_held(row: Row) -> None:
    words = ('launch.env.EATING="allocator 1 2"', "launch.max_crashes=2")
    paced = row.start(*words)
    paced.finish("FAILED")
    run = paced.run
    oracles.closed(run, ["out_of_memory", "out_of_memory"])
    result = run.result()
    assert result["status"] == "held", result
    assert "2 crashes within 24 hours without" in result["reason"], result
    assert "can't allocate memory" in result["reason"] and "\n" not in result["reason"], result


def test_row_29_the_kernel_kills_a_rank(row: Row, cluster: Cluster) -> None:
    if cluster.site.proctrack != "cgroup":
        pytest.skip("no cgroup here that limits memory")
    baseline = row.reference()
    cluster.restart(extra_conf=LIMITED)
    run = run_twice(row, 'launch.env.EATING="kernel 1"', "slurm.mem=2G")
    first = run.attempts()[0]
    assert first["decision"] == "retry", first
    assert "the kernel killed " in first["reason"], first
    assert " for want of memory: the job may use " in first["reason"], first
    place = read_jsonl(run.dir.timeline("rank-00001"))[0]
    assert place["event"] == "spawn" and f"{place['host']}: the kernel" in first["reason"], first
    oracles.retried(run, baseline, "out_of_memory")
