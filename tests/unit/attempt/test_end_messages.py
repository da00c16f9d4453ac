"""The lines of job.log about an attempt that failed."""

import pytest

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.attempt import end_messages
from slurm_job_kit.jobs.records.nodes import RankError
from slurm_job_kit.jobs.runs import fact_reader, interpret
from tests.unit import run_files


@pytest.fixture
def run(run):
    """Attempt 1 on the nodes a and b, whose agents ended with 1."""
    run_files.opened(run)
    for rank, host in enumerate("ab"):
        run_files.node(run.attempt(1), rank, host=host, torchrun_exit=1)
    return run


def shown(run, capfd):
    facts = fact_reader.read(run, 1)
    end_messages.report_error(run, facts, interpret.rank_evidence(facts, "RUNNING"))
    return capfd.readouterr().err


def test_the_failing_rank_stands_first_and_torchruns_file_is_named(run, capfd):
    error = RankError(5.0, 1, "b", "ValueError: x", traceback="Traceback\nValueError: x")
    records.write(run.attempt(1).rank_error(1), error)
    run.attempt(1).torchrun_log(0).write_text("Traceback of torchrun\n" * 80)
    lines = shown(run, capfd).splitlines()
    assert lines[0].startswith("first failure: rank 1 on b")
    assert lines[-1] == f"torchrun's own output: {run.attempt(1).torchrun_log(0)}"
    assert "Traceback of torchrun" not in "\n".join(lines)


def test_the_hint_of_the_failing_rank_stands_below_its_traceback(run, capfd):
    trace = "Traceback\nMemoryError: x"
    error = RankError(5.0, 1, "b", "MemoryError: x\n  hint: more", traceback=trace)
    records.write(run.attempt(1).rank_error(1), error)
    assert shown(run, capfd).splitlines()[2:4] == ["MemoryError: x", "  hint: more"]


def test_without_a_record_the_end_of_the_log_with_an_error_is_shown(run, capfd):
    run.attempt(1).rank_log(0).write_text("step 1\n")
    run.attempt(1).torchrun_log(1).write_text("Traceback\nModuleNotFoundError: No module named x\n")
    assert "ModuleNotFoundError" in shown(run, capfd)


def test_a_script_that_exited_is_shown_with_the_end_of_its_log_and_the_ranks_after_it(run, capfd):
    run.attempt(1).rank_log(1).write_text("".join(f"line {n}\n" for n in range(100)))
    errors = [RankError(5.0, 1, "b", "exited with code 3", exit_code=3)]
    errors += [RankError(5.0 + n, n, "a", "ValueError: x", traceback="x") for n in range(2, 7)]
    for error in errors:
        records.write(run.attempt(1).rank_error(error.rank), error)
    lines = shown(run, capfd).splitlines()
    log = run.attempt(1).rank_log(1)
    assert lines[:2] == ["first failure: rank 1 on b exited with code 3", f"the end of {log}:"]
    assert lines[2:17] == [f"line {n}" for n in range(85, 100)]
    after = [f"failed after it: rank {n} on a: ValueError: x" for n in (2, 3, 4)]
    assert lines[17:21] == [*after, f"failed after it: 2 more ranks, see {run.attempt(1).path}"]


def test_a_rank_that_only_a_sigterm_ended_did_not_lose_a_peer(run, capfd):
    error = RankError(5.0, 1, "b", "was killed by SIGTERM", caused_by_peer=True, exit_code=-15)
    records.write(run.attempt(1).rank_error(1), error)
    text = shown(run, capfd)
    assert text.startswith("first failure: rank 1 on b was killed by SIGTERM\n")
    assert "lost its peer" not in text


def test_the_reason_of_an_agent_that_started_no_torchrun_is_shown(run, capfd):
    # srun then ends the other agent.
    run_files.node(run.attempt(1), 0, (5.5, "SIGTERM"), host="a", torchrun_exit=-1)
    error = "b: launch.interface: ib0 is no interface"
    run_files.node(run.attempt(1), 1, host="b", torchrun_exit=None, end=5.0, error=error)
    assert shown(run, capfd).splitlines()[0] == f"first failure: {error}"


def test_a_stop_before_the_ranks_is_no_failure(run, capfd):
    run_files.node(run.attempt(1), 0, (1.0, "SIGTERM"), host="a", torchrun_exit=1)
    assert "stop came before" in shown(run, capfd)
