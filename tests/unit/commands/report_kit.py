"""Histories and run directories for the tests of report; times in seconds after BEGIN."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.commands.times.history import AttemptHistory, RunHistory
from slurm_job_kit.jobs.commands.times.spans import Use, spans_of
from slurm_job_kit.jobs.records.ended import Action, AttemptRecord, Cause, Evidence
from slurm_job_kit.jobs.records.nodes import AttemptPlan, RankError
from slurm_job_kit.jobs.records.training import Event
from slurm_job_kit.jobs.rundir import STEPS_WRITER, RunDir, append_jsonl
from slurm_job_kit.jobs.runs.state import RunFiles, RunPhase, RunState
from slurm_job_kit.jobs.spec import Slurm, Spec

BEGIN = 1_800_000_000
EVIDENCE = Evidence(None, "RUNNING", "", (), False, True, None)
START_UP = ("torchrun", "import", "rendezvous", "init", "data", "model", "loaded", "first_step")


def event(t, name, step=None, **fields):
    return Event(BEGIN + t, name, 1, step=step, **fields)


def started(t, loaded=0):
    """The events of a start-up from `t` on: a second for each phase."""
    steps = {"loaded": loaded, "first_step": loaded + 1}
    return [event(t + n, name, steps.get(name)) for n, name in enumerate(START_UP, 1)]


def record(number, start, stop, **fields):
    known: dict[str, Any] = dict.fromkeys(
        ("first_step", "last_step", "stop_s", "start_s", "checkpoint")
    )
    known |= {"job_id": "7", "nodes": ("n1", "n2"), "quarantined": (), "reason": ""}
    known |= {"cause": Cause.PREEMPTION, "decision": Action.REQUEUE, "evidence": EVIDENCE}
    known |= {"start": BEGIN + start, "stop": BEGIN + stop}
    return AttemptRecord(attempt=number, **(known | fields))


def attempt(number, start, stop, events=(), failed=None, **fields):
    """An attempt with a record. `fields`: of the record."""
    own = [*events, event(stop, "close")]
    return AttemptHistory(
        number,
        (BEGIN + start) * 1000,
        ("n1", "n2"),
        "7",
        (BEGIN + stop) * 1000,
        record(number, start, stop, **fields),
        tuple(dataclasses.replace(each, attempt=number) for each in own),
        None if failed is None else (BEGIN + failed) * 1000,
    )


def history(attempts, end, submits=(0,), spec=None, begin=0):
    to_ms, files = 1000, RunFiles(RunDir(Path("runs/tiny/1")), Spec())
    return RunHistory(
        RunState(files, RunPhase.HELD, "held"),
        (BEGIN + begin) * to_ms,
        (BEGIN + end) * to_ms,
        True,
        tuple((BEGIN + each) * to_ms for each in submits),
        tuple(attempts),
        spec or Spec(slurm=Slurm(nodes=2, gpus_per_node=4)),
    )


def seconds(found):
    """The seconds of each use that has any."""
    spans = spans_of(found)
    used = {use: sum(s.length for s in spans if s.use is use) / 1000 for use in Use}
    return {use.value: time for use, time in used.items() if time}


def write_run(run, attempts, metrics=()):
    """Write the files of attempts into a run directory that `make_run` made."""
    append_jsonl(run.timeline("submit"), {"t": BEGIN, "event": "freeze", "attempt": None})
    append_jsonl(run.timeline("submit"), {"t": BEGIN + 2, "event": "submit", "attempt": None})
    for each in attempts:
        run.attempt(each.number).path.mkdir()
        start = each.start / 1000
        plan = ("n1", "test", "n1:1", "id", start, None)
        records.write(
            run.attempt(each.number).plan,
            AttemptPlan(each.number, each.job_id, each.nodes, *plan),
        )
        for happened in each.events:
            writer = "attempt" if happened.event == "close" else "rank-00000"
            line = {key: value for key, value in vars(happened).items() if value is not None}
            append_jsonl(run.timeline(STEPS_WRITER if happened.event == "steps" else writer), line)
        if each.failed is not None:
            error = RankError(each.failed / 1000, 0, "n1", "it failed")
            records.write(run.attempt(each.number).rank_error(0), error)
        if each.record is not None:
            records.append(run.attempts, each.record)
    if metrics:
        run.metrics.write_text("".join(json.dumps(line) + "\n" for line in metrics))
    return run


def two_attempts():
    """A run that was requeued and repeated 10 steps; it took 100 seconds."""
    events = [*started(10), event(37, "steps", 20, samples_per_s=64.0, memory_mib=100)]
    first = attempt(1, 10, 50, events, failed=48, first_step=1, last_step=30)
    again = [*started(60, loaded=20), event(98, "completed", 50)]
    done = {"cause": Cause.COMPLETED, "decision": Action.DONE}
    return [first, attempt(2, 60, 100, again, first_step=21, last_step=50, **done)]


def lines(steps, **metrics):
    """Lines of metrics.jsonl with the same values at each step."""
    return [{"step": step, "epoch": 1, **metrics, "lr": 0.1} for step in steps]
