"""Whether the jobs of runs live: squeue has those in the queue, sacct also those that are gone.

Slurm answers about a job that it hides as about one that it does not have: then it is unknown
whether another user's job lives. A missing answer is no exception, as in jobs.slurm.ask.
Standard library only.
"""

import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..base.console import user_name
from ..contract.records.queued import RecordedJob
from . import cluster, duration, job_state
from .ask import call, output
from .job import Job, ask_about

# How long the accounting may not know yet that a job has ended. On Slurm 22.05.8 it still showed
# the start before of a job that slurmctld had forgotten (MinJobAge 5 s).
ACCOUNTING_DELAY_S = 10.0
# A reason may have any character that people type, newlines, too.
_ROW, _SEPARATOR = "\x1e", "\x1f"
_COLUMNS = ("%i", "%T", "%S", "%L", "%D", "%N", "%r", "%U")
QUEUE_FORMAT = _ROW + _SEPARATOR.join(_COLUMNS)


@dataclass(frozen=True)
class Liveness:
    """Whether a job or a process lives: it waits, runs, or may start again.

    is_alive: None where that is unknown. Then `why` is a sentence without its dot, and `hint` what
    a person can do. Only what is known to have ended may be taken over.
    job: what Slurm shows of a job.
    """

    is_alive: bool | None
    why: str = ""
    hint: str = "try again"
    job: Job | None = None
    is_silent: bool = False  # Slurm did not answer


def life_of(recorded: RecordedJob, patience_s: float = 0.0) -> Liveness:
    """Return whether a job of a run lives.

    patience_s: how long to ask again while slurmctld does not answer.
    """
    job, has_answered = ask_about(recorded.job_id, patience_s)
    jobs = {} if job is None else {recorded.job_id: job}
    return _lives_of([recorded], jobs if has_answered else None, False)[recorded.job_id]


def _lives_of_ended(
    over: Sequence[RecordedJob], shown: Mapping[str, Job], is_end_wanted: bool
) -> dict[str, Liveness]:
    """Return the lives of jobs that Slurm does not show, or shows as ended.

    It may hide jobs of other users (PrivateData), and this host may ask another cluster: these
    lives are unknown.
    """
    here = cluster.settings().get("ClusterName") if any(job.cluster for job in over) else None
    absent = [job.job_id for job in over if job.job_id not in shown]
    past = past_states(absent) if absent and is_end_wanted else {}
    lives = {}
    for job in over:
        is_hidden = job.job_id in absent and job.uid not in (None, os.getuid())
        if is_hidden or job.cluster not in (None, here):
            why = f"job {job.job_id} is of another user or cluster: unknown whether it still runs"
            own = "or begin a run of your own: submit ... --from RUN"
            user = f"ask user {user_name(job.uid)}, {own}"
            hint = user if is_hidden else f"use a host of cluster {job.cluster}"
            lives[job.job_id] = Liveness(None, why, hint)
        else:
            state = past.get(job.job_id)
            ended = Job(state) if state in job_state.ENDED else shown.get(job.job_id)
            lives[job.job_id] = Liveness(False, job=ended)
    return lives


def _lives_of(
    wanted: Sequence[RecordedJob], queued: Mapping[str, Job] | None, is_end_wanted: bool
) -> dict[str, Liveness]:
    """Return whether each of these jobs lives. queued: as of `queue`.

    is_end_wanted: ask sacct, too, in which state those that are gone have ended.
    """
    if queued is None:
        why = "Slurm does not answer whether job {} still runs"
        ids = (each.job_id for each in wanted)
        return {job_id: Liveness(None, why.format(job_id), is_silent=True) for job_id in ids}
    shown = {
        each.job_id: job
        for each in wanted
        # Slurm may have given the id to another user since, after a loss of its state.
        if (job := queued.get(each.job_id)) and len({each.uid, job.uid} - {None}) < 2
    }
    alive = {job_id: Liveness(True, job=job) for job_id, job in shown.items() if job.is_alive}
    over = [each for each in wanted if each.job_id not in alive]
    return alive | _lives_of_ended(over, shown, is_end_wanted)


def queue(users: Iterable[int] = ()) -> dict[str, Job] | None:
    """Return the jobs of this user and of others (uids), by one call of squeue.

    By their ids, of a task ARRAYJOB_TASK: those that wait, run, or ended in the last minutes; None
    where squeue is missing or did not answer. All jobs of the users, because squeue fails as a
    whole if it does not know a single id. Source: squeue(1); %S of a pending job is the start that
    the backfill scheduler expects, which `squeue --start` prints, too.
    """
    of_users = f"--user={','.join(map(str, sorted({os.getuid(), *users})))}"
    # --all: also those in partitions that the site hides, the user's own ones, too.
    columns = ("--all", "--noheader", "--array", "--states=all", f"--format={QUEUE_FORMAT}")
    answer = call(["squeue", *columns, of_users])
    if answer is not None and "Invalid user" in answer.stderr:
        # It leaves out the jobs of a user whom this host does not know: ask for those of all.
        answer = call(["squeue", *columns])
    if answer is None or answer.returncode != 0:
        return None
    rows = [row.split(_SEPARATOR) for row in answer.stdout.split(_ROW)[1:]]
    if any(len(row) != len(_COLUMNS) for row in rows):
        return None  # a job that cannot be read has not ended
    return {row[0]: _job_of(row[1:]) for row in rows}


def _job_of(row: Sequence[str]) -> Job:
    """Return the job of a line of squeue, without its id."""
    state, start, left, num_nodes, nodes, reason, uid = row
    return Job(
        state=job_state.read(state),
        reason=reason,
        uid=int(uid) if uid.strip().isdecimal() else None,
        start=float(start) if start.isdecimal() else None,
        left_s=duration.parse_or_zero(left) or None,
        num_nodes=int(num_nodes) if num_nodes.isdecimal() else 0,
        nodes=nodes,
    )


def ask(jobs: Iterable[RecordedJob]) -> dict[str, Liveness]:
    """Return whether each of these jobs lives; squeue is asked once for all of them."""
    wanted = list(jobs)
    return _lives_of(wanted, queue(job.uid for job in wanted if job.uid is not None), True)


def past_states(job_ids: Iterable[str]) -> dict[str, str]:
    """Return the state of each job in the accounting database; empty if the site has none.

    Source: sacct(1).
    """
    if shutil.which("sacct") is None:
        return {}
    options = ("--noheader", "--parsable2", "--allocations", "--format=JobID,State")
    text = output(["sacct", *options, f"--jobs={','.join(job_ids)}"])
    rows = (line.partition("|") for line in text.splitlines() if "|" in line)
    return {job_id: job_state.read(state) for job_id, _, state in rows}


def end_state(job_id: str, delay_s: float = ACCOUNTING_DELAY_S) -> str | None:
    """Return the state in which a job ended that slurmctld no longer has; None if it is unknown.

    The accounting database may learn seconds later than slurmctld that a job has ended. Until then
    it shows the job as it was: REQUEUED where a waiting job was cancelled after a requeue.
    """
    deadline = time.monotonic() + delay_s
    while (state := past_states([job_id]).get(job_id)) is not None:
        if state in job_state.ENDED:
            return state
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    return None
