"""The command logs: one rank's logs over all attempts, followed until the run ends; errors."""

import itertools
import threading

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.nodes import RankError
from slurm_job_kit.jobs.plugins.look import logs
from tests.core import run_files
from tests.core.run_files import make_run, write_json
from tests.core.waiting import wait_for

LIMIT_S = 20


def begin(run, attempt, text="", rank=0, **plan):
    """Open an attempt whose rank has written a log."""
    log = run_files.opened(run, attempt, **plan).rank_log(rank)
    log.write_bytes(text if isinstance(text, bytes) else text.encode())
    return log


def end(run, attempt, **fields):
    run_files.recorded(run, attempt=attempt, **fields)


@pytest.fixture
def run(here):
    """A run of two attempts."""
    run = make_run(here)
    begin(run, 1, "step 1\nstep 2\nkilled")
    end(run, 1, cause="preemption", reason="requeued")
    begin(run, 2, "step 3\nstep 4\n")
    return run


def test_one_attempt_is_shown_as_it_is(run, capsys):
    assert main(["logs", "tiny", "--attempt", "1"]) == 0
    assert capsys.readouterr().out == "step 1\nstep 2\nkilled\n"
    assert main(["logs", "tiny", "--attempt", "7"]) == 2
    assert "1-2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (0, []),
        (1, ["step 4"]),
        (4, ["killed", "step 3", "step 4"]),
        (99, ["step 1", "step 2", "killed", "step 3", "step 4"]),
    ],
)
def test_the_last_lines_come_from_as_many_attempts_as_needed(run, capsys, lines, shown):
    assert main(["logs", "tiny", "-n", str(lines)]) == 0
    output = capsys.readouterr().out.splitlines()
    assert [line for line in output if not line.startswith("----")] == shown


def test_bytes_that_are_no_text_are_replaced_and_text_is_not_cut_between_blocks(
    here, capsys, monkeypatch
):
    monkeypatch.setattr(logs, "BLOCK_BYTES", 1)
    begin(run := make_run(here), 1, b"\xc3\xa4\xff\n")
    end(run, 1)
    for options in ([], ["-f", "--attempt", "1"]):
        assert main(["logs", "tiny", *options]) == 0
        assert capsys.readouterr().out == "ä\ufffd\n"


def test_of_a_progress_bar_the_newest_state_is_shown_without_its_colours(here, capsys, monkeypatch):
    begin(run := make_run(here), 1, "start\r\n\r 1%\r 50%\r\33[1;31m100%\33[0m\nepoch 1:  7%\r 8%")
    end(run, 1)
    assert main(["logs", "tiny"]) == 0
    assert capsys.readouterr().out == "start\n100%\n 8%\n"
    monkeypatch.setattr(logs, "BLOCK_BYTES", 40)  # of a log that grows: to `epoch 1`
    assert main(["logs", "tiny", "-f", "--attempt", "1"]) == 0
    assert capsys.readouterr().out == "start\n100%\nepoch 1\n 8%"


def test_a_rank_without_a_log_is_refused_with_those_that_have_one(run, capsys):
    begin(run, 2, "x", rank=1)
    assert main(["logs", "tiny", "--rank", "3"]) == 2
    assert "0-1" in capsys.readouterr().err
    assert main(["logs", "tiny", "--rank", "-1"]) == 2
    run.progress.write_text('{"step": 4, "total": 50}')
    assert main(["logs", "tiny", "-f", "--rank", "9"]) == 2


def test_a_run_that_has_not_started_has_no_log(here, capsys):
    make_run(here)
    assert main(["logs", "tiny"]) == 2
    assert "has not started" in capsys.readouterr().err


def wait_until_shown(capsys, seen, text):
    """Wait until the command has printed a text; `seen` collects what it prints."""

    def is_shown():
        seen.append(capsys.readouterr().out)
        return text in "".join(seen)

    wait_for(is_shown, text)


def test_a_log_is_followed_over_attempts_until_the_run_has_ended(
    slurm, submitted, capsys, monkeypatch
):
    monkeypatch.setattr(logs, "JUDGE_AGAIN_S", 0.1)
    monkeypatch.setattr(logs, "LOOK_AGAIN_S", 0.02)
    slurm.set_state("4711", "PENDING")
    run, codes = submitted, []
    thread = threading.Thread(
        target=lambda: codes.append(main(["logs", "tiny", "-f"])), daemon=True
    )
    thread.start()
    log = begin(run, 1, "step 1\n")
    seen: list[str] = []
    wait_until_shown(capsys, seen, "step 1\n")
    with open(log, "a", encoding="utf-8") as file:
        file.write("step 2\n")
    wait_until_shown(capsys, seen, "step 2\n")
    end(run, 1, cause="preemption", decision="requeue")
    begin(run, 2, "step 3\n")
    wait_until_shown(capsys, seen, "step 3\n")
    assert thread.is_alive()
    with open(run.attempt(2).rank_log(0), "a", encoding="utf-8") as file:
        file.write("the last line\n")
    write_json(run.result, {"status": "completed"})
    thread.join(LIMIT_S)
    text = "".join([*seen, capsys.readouterr().out])
    assert codes == [0] and text.endswith("the last line\n")
    assert text.index("step 2") < text.index("---- attempt 2") < text.index("step 3")
    assert sum(call.startswith("squeue") for call in slurm.calls) == 1


def test_following_waits_for_a_log_and_says_for_what(slurm, submitted, capfd, monkeypatch):
    slurm.set_state("4711", "PENDING")
    run = submitted
    capfd.readouterr()
    judged = itertools.count()

    def look(_):
        if next(judged) == 3:
            write_json(run.result, {"status": "cancelled"})

    monkeypatch.setattr("time.sleep", look)
    monkeypatch.setattr(logs, "JUDGE_AGAIN_S", 0.0001)
    assert main(["logs", "tiny", "-f"]) == 0
    error = capfd.readouterr().err
    assert error.count("waiting for the log of rank 0") == 1 and error.endswith("cancelled\n")
    assert main(["logs", "tiny"]) == 2
    error = capfd.readouterr().err
    assert "make why RUN=" in error and "-f waits" not in error


def test_errors_shows_node_and_log_of_the_rank_that_failed_first(run, capsys):
    lines = [f"line {n}" for n in range(100)]
    lines[90] = "red" + "x" * 1000
    run.attempt(1).rank_log(1).write_text("\n".join(lines) + "\n")
    for number in range(1, 4):
        error = RankError(5.0 + number, number, "b", "ValueError: x\n  hint: more", traceback="x")
        records.write(run.attempt(1).rank_error(number), error)
    assert main(["logs", "tiny", "--errors"]) == 0
    name, first, end_of, *shown, more = capsys.readouterr().out.splitlines()
    assert (name, first) == ("attempt 1", "first failure: rank 1 on b: ValueError: x")
    assert end_of == f"the end of {run.attempt(1).rank_log(1)}:"
    assert len(shown) == 20 and shown[-1] == "line 99"
    assert shown[10].startswith("redxxx") and len(shown[10]) < 450
    assert more == "2 more ranks failed after it"
    assert main(["logs", "tiny", "--errors", "--attempt", "2"]) == 0
    assert capsys.readouterr().out == ""
