"""What the batch script does with a decision: its exit code, and a requeue that Slurm refuses."""

import os

import pytest

from jobs import attempt, owner
from jobs.decision import Action, Cause, Decision
from jobs.rundir import RunDir, read_json

SCONTROL = """#!/bin/sh
echo "$*" >> "$FAKE_CALLS"
[ "$1" = show ] && echo "   JobState=$FAKE_STATE Reason=None Dependency=(null)"
exit 0
"""
REQUEUE = Decision(Action.REQUEUE, Cause.PREEMPTION, "preempted")


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """A fake scontrol, which cannot be refused on demand by a real one; the calls it got."""
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


def test_a_refused_requeue_is_held_with_its_reason(tmp_path, calls, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_STATE", "RUNNING")
    run, me = RunDir(tmp_path), owner.this_process("7")
    owner.claim(run, me, 1)
    assert attempt.act(REQUEUE, run, me) == 1
    assert "NOT requeued" in capsys.readouterr().err
    assert read_json(run.result)["status"] == "held"
    assert "not requeued" in read_json(run.result)["reason"]
    assert not run.owner.exists()


def test_a_requeue_is_asked_for_once_and_never_of_a_finished_job(tmp_path, calls, monkeypatch):
    monkeypatch.setenv("FAKE_STATE", "PENDING")
    run = RunDir(tmp_path)
    assert attempt.act(REQUEUE, run, owner.this_process("7")) == 1
    asked = [line for line in calls.read_text().splitlines() if "requeue" in line]
    assert asked == ["requeue Incomplete 7"]
    assert not run.result.exists()


@pytest.mark.parametrize(("action", "code"), [("done", 0), ("hold", 1), ("cancel", 1), ("wait", 1)])
def test_a_run_that_is_not_complete_never_ends_with_0(tmp_path, action, code):
    decision = Decision(Action(action), Cause.CRASH, "x")
    assert attempt.act(decision, RunDir(tmp_path), owner.this_process("7")) == code
