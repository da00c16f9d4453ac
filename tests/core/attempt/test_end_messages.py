"""The lines of job.log about an attempt that failed."""

import pytest

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.attempt import end_messages
from slurm_job_kit.jobs.records.nodes import RankError
from slurm_job_kit.jobs.runs import fact_reader, interpret
from tests.core import run_files


@pytest.fixture
def run(run):
    """Attempt 1 on the nodes a and b, whose agents ended with 1."""
    run_files.opened(run)
    for rank, host in enumerate("ab"):
        run_files.node(run.attempt(1), rank, host=host, torchrun_exit=1)
    return run


def shown(run):
    facts = fact_reader.read(run, 1)
    return end_messages.error_lines(run, facts, interpret.rank_evidence(facts, "RUNNING"))


def test_the_failing_rank_is_shown_with_the_end_of_its_log(run):
    lines = [f"line {n}" for n in range(100)]
    lines[90] = "\x1b[31mred\x1b[0m" + "x" * 1000
    run.attempt(1).rank_log(1).write_text("\n".join(lines) + "\n")
    for number in range(1, 4):
        error = RankError(5.0 + number, number, "b", "ValueError: x\n  hint: more", traceback="x")
        records.write(run.attempt(1).rank_error(number), error)
    first, end_of, *shown_lines, more = shown(run)
    assert first == "first failure: rank 1 on b: ValueError: x"
    assert end_of == f"the end of {run.attempt(1).rank_log(1)}:"
    assert len(shown_lines) == 20 and shown_lines[-1] == "line 99"
    assert shown_lines[10].startswith("redxxx") and len(shown_lines[10]) < 450
    assert more == "2 more ranks failed after it"


def test_a_stop_before_the_ranks_is_no_failure(run):
    for rank, host in enumerate("ab"):
        run_files.node(run.attempt(1), rank, (1.0, "SIGTERM"), host=host, torchrun_exit=None)
    assert shown(run) == []
