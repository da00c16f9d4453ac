"""The oracles of the fault table: checks of a run after its end."""

from itertools import pairwise

from slurm_job_kit.jobs.base.files import read_json
from tests import bitwise as bits

from ..kit import Run
from .scenario import STEPS_PER_EPOCH


def bitwise(run: Run, reference: Run) -> None:
    """BW: weights, optimizer, metrics and best checkpoint are those of the reference run."""
    differences = bits.differences(run.dir, reference.dir)
    assert differences == [], differences


def no_step_redone(run: Run) -> None:
    """L0: each attempt begins after the last step of the one before."""
    trained = [a for a in run.attempts() if a["first_step"] is not None]
    assert all(b["first_step"] == a["last_step"] + 1 for a, b in pairwise(trained)), trained
    redone = run.result()["steps_redone"]
    assert redone == 0, redone


def at_most_one_interval(run: Run) -> None:
    """LK: only the steps since the last due save are repeated.

    If that save was not committed yet, it is one interval more, and the save was in flight. After a
    save that was slower than its interval none was due: the newest one is the last due one.
    """
    interval = interval_steps(run)
    trained = [a for a in run.attempts() if a["first_step"] is not None]
    for lost, later in pairwise(trained):
        due = lost["last_step"] // interval * interval
        saves = [e["step"] for e in run.events("save") if e["attempt"] == lost["attempt"]]
        floor = due if due in saves else max(0, due - interval)
        if " is postponed" in run.dir.attempt(lost["attempt"]).rank_log(0).read_text():
            floor = max(saves, default=lost["first_step"] - 1)
        assert later["first_step"] - 1 >= floor, (lost, later)


def closed(run: Run, causes_: list[str], num_requeues: int | None = None) -> None:
    """NO; the causes of all attempts, and the requeues if a number is given."""
    causes(run, causes_)
    if num_requeues is not None:
        requeues(run, num_requeues)
    nothing_left(run)


def ended(run: Run, reference: Run, causes_: list[str], num_requeues: int | None = None) -> None:
    """BW; `closed`."""
    bitwise(run, reference)
    closed(run, causes_, num_requeues)


def went_on(run: Run, reference: Run, *before: str) -> None:
    """BW L0 NO; an attempt and a requeue for each of these causes, and the end."""
    ended(run, reference, [*before, "completed"], len(before))
    no_step_redone(run)


def retried(run: Run, reference: Run, cause: str) -> None:
    """BW LK NO; after this cause a new attempt in the same start of the job."""
    ended(run, reference, [cause, "completed"], 0)
    at_most_one_interval(run)


def interval_steps(run: Run) -> int:
    wish = read_json(run.dir.spec)["checkpoint"]
    by_epochs = (wish["every_epochs"] or 10**9) * STEPS_PER_EPOCH
    return int(min(wish["every_steps"] or 10**9, by_epochs))


def requeues(run: Run, number: int) -> None:
    """R1 if num is 1: Slurm has started the job again that many times."""
    counted = run.cluster.job(run.job_id)["Restarts"]
    assert counted == str(number), counted


def nothing_left(run: Run) -> None:
    """NO: no process of any job and no temporary checkpoint is left."""
    run.cluster.wait_for(lambda: not run.cluster.job_processes(), "no process of the job", 60)
    drafts = list(run.dir.checkpoints.glob(".*"))
    assert not drafts, drafts


def stays_cancelled(run: Run, restarts: int = 0) -> None:
    """The job is cancelled, and no process or other job is left that could start it again.

    `restarts`: the requeues that Slurm had counted before the cancel.
    """
    run.wait("CANCELLED")
    nothing_left(run)
    requeues(run, restarts)
    state, queued = run.cluster.job(run.job_id)["JobState"], run.cluster.job_ids()
    assert (state, queued) == ("CANCELLED", []), (state, queued)


def causes(run: Run, expected: list[str]) -> None:
    recorded = [attempt["cause"] for attempt in run.attempts()]
    assert recorded == expected, recorded


def stopped_together(run: Run, attempt: int) -> None:
    """All ranks of an attempt saw the stop before the same step, which is the last one."""
    stops = [e["step"] for e in run.events("stop_seen") if e["attempt"] == attempt]
    last = next(a["last_step"] for a in run.attempts() if a["attempt"] == attempt)
    assert stops == [last] * 3, (stops, last)
