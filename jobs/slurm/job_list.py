"""Whether the jobs of runs live: squeue has those in the queue, sacct also those that are gone.

Slurm answers about a job that it hides as about one that it does not have. So a job that Slurm does
not show has ended only if Slurm would show it: `life_of` and `Queue.lives_of` decide that. A
missing answer is no exception, as in jobs.slurm.client. Standard library only.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..console import user_name
from ..records.queued import RecordedJob
from . import client, duration, job_state, site
from .client import Job, Life, call
from .sbatch import SCRIPT

# A job that the accounting has in such a state does not start again by itself.
_FINAL = job_state.ENDED - {"BOOT_FAIL", "NODE_FAIL", "PREEMPTED"}
# How long the accounting may not know yet that a job has ended. On Slurm 22.05.8 it still showed
# the start before of a job that slurmctld had forgotten (MinJobAge 5 s).
ACCOUNTING_DELAY_S = 10.0
# A reason, a directory and a command may have any character that people type, newlines, too.
_ROW, _SEPARATOR = "\x1e", "\x1f"
_COLUMNS = ("%i", "%T", "%S", "%L", "%D", "%N", "%r", "%U", "%Z", "%o")
QUEUE_FORMAT = _ROW + _SEPARATOR.join(_COLUMNS)
_NUM_COLUMNS = len(_COLUMNS)
# The kit's batch script, and the arguments behind it.
_OURS = re.compile(rf"(?:^|[/ ]){re.escape(SCRIPT.name)}(?: (.*))?$")


def life_of(recorded: RecordedJob, patience_s: float = 0.0) -> Life:
    """Return whether a job of a run lives.

    patience_s: how long to ask again while slurmctld does not answer.
    """
    job, has_answered = client.ask_about(recorded.job_id, patience_s)
    if job is None and not has_answered:
        return _silent(recorded)
    if job is None:
        return hidden_jobs([recorded]).get(recorded.job_id, Life(False))
    if _is_other(recorded, job) or not job.is_alive:
        if (elsewhere := _in_another_cluster(recorded)) is not None:
            return elsewhere
        return Life(False, job=None if _is_other(recorded, job) else job)
    return Life(job.is_alive, job=job)


def _silent(job: RecordedJob) -> Life:
    return Life(None, f"Slurm does not answer whether job {job.job_id} still runs", is_silent=True)


def _has_other(recorded: RecordedJob, job: Job | None) -> bool:
    return job is not None and _is_other(recorded, job)


def _elsewhere_of(jobs: Sequence[RecordedJob]) -> dict[str, Life]:
    """Return which of these jobs another cluster has; its configuration is asked for once."""
    named = [job for job in jobs if job.cluster is not None]
    config = site.query_config() if named else None
    asked = None if config is None else config.cluster
    return {job.job_id: _elsewhere(job, asked) for job in named if asked and job.cluster != asked}


def _in_another_cluster(recorded: RecordedJob) -> Life | None:
    """Return that a job is unknown here; None if this host asks the cluster that has it."""
    config = None if recorded.cluster is None else site.query_config()
    if config is None or not config.cluster or config.cluster == recorded.cluster:
        return None
    return _elsewhere(recorded, config.cluster)


def hidden_jobs(
    absent: Iterable[RecordedJob],
    query_config: Callable[[], site.Config | None] = site.query_config,
) -> dict[str, Life]:
    """Return which of these jobs, none of which Slurm shows, it may have all the same, and why.

    Slurm hides jobs of other users (PrivateData), and this host may ask another cluster. A job
    whose end the accounting shows has ended.
    """
    me = os.getuid()
    asked = [job for job in absent if job.cluster is not None or job.uid not in (None, me)]
    others = [job for job in asked if job.uid not in (None, me)]
    if not asked:
        return {}
    config = query_config()
    are_hidden = bool(others) and me != 0 and _are_jobs_hidden(config, me)
    away: dict[str, Life] = {}
    lives: dict[str, Life] = {}
    cluster = config.cluster if config is not None else ""
    for job in asked:
        if cluster and job.cluster is not None and job.cluster != cluster:
            away[job.job_id] = _elsewhere(job, cluster)
        elif are_hidden and job in others:
            lives[job.job_id] = _hidden_life(job, is_known=config is not None)
    # The accounting of this cluster may have another job with the id of one that is elsewhere.
    states = past_states(lives) if lives else {}
    lives = {job_id: life for job_id, life in lives.items() if states.get(job_id) not in _FINAL}
    return lives | away


def _are_jobs_hidden(config: site.Config | None, me: int) -> bool:
    """Return whether Slurm may show this user no jobs of others. Without an answer it may."""
    if config is None:
        return True
    return config.hides_jobs and me != config.slurm_uid and not site.sees_all_jobs(user_name(me))


def _hidden_life(job: RecordedJob, is_known: bool) -> Life:
    user = user_name(job.uid)
    why = "Slurm hides the jobs of other users here (PrivateData=jobs)"
    if not is_known:
        why = "Slurm does not answer whether it hides the jobs of other users"
    why += f", and job {job.job_id} is one of user {user}: whether it still runs is unknown"
    own = "or submit with --from copies its newest checkpoint into a run of your own"
    return Life(None, why, f"ask user {user}, {own}")


def _elsewhere(job: RecordedJob, asked: str) -> Life:
    why = f"job {job.job_id} is in cluster {job.cluster}, and this host asks cluster {asked}"
    hint = f"use a host of cluster {job.cluster}"
    return Life(None, f"{why}: whether it still runs is unknown", hint)


def _is_other(recorded: RecordedJob, job: Job) -> bool:
    """Return whether Slurm gave the recorded id to another job since.

    It does so after the highest id (MaxJobId), and after a loss of its state. Only what the job
    itself shows counts: another user, or the directory of another run in its command.
    """
    if None not in (recorded.uid, job.uid) and job.uid != recorded.uid:
        return True
    _, is_ours, target = job.command.partition(f"{SCRIPT.name} ")
    if not is_ours or recorded.run_dir is None:
        return False
    path = Path(job.work_dir, target.strip())
    if (path / "sweep.json").is_file():
        path = path / "points" / recorded.job_id.partition("_")[2]
    with contextlib.suppress(OSError):
        return (path / "spec.json").is_file() and not path.samefile(recorded.run_dir)
    return False


@dataclass(frozen=True)
class Queue:
    """One answer of squeue: the jobs of some users that wait, run, or ended in the last minutes.

    jobs: by their ids, of a task ARRAYJOB_TASK; None where squeue is missing or did not answer.
    """

    jobs: Mapping[str, Job] | None

    def lives_of(
        self, recorded: Iterable[RecordedJob], is_end_wanted: bool = True
    ) -> dict[str, Life]:
        """Return whether each of these jobs lives.

        is_end_wanted: ask sacct, too, in which state those that are gone have ended.
        """
        wanted = list(recorded)
        if self.jobs is None:
            return {each.job_id: _silent(each) for each in wanted}
        shown = {each.job_id: self.jobs[each.job_id] for each in wanted if each.job_id in self.jobs}
        others = [each for each in wanted if _has_other(each, shown.get(each.job_id))]
        absent = [each for each in wanted if each.job_id not in shown]
        # What is shown here as ended, or as another job, may live in another cluster.
        over = [each for each in wanted if each.job_id in shown and not shown[each.job_id].is_alive]
        unknown = hidden_jobs(absent) | _elsewhere_of([*others, *over])
        gone = [each.job_id for each in absent if each.job_id not in unknown]
        past = past_states(gone) if gone and is_end_wanted else {}
        ended = {job_id: Job(state) for job_id, state in past.items() if state in job_state.ENDED}
        lives = {job_id: Life(False, job=ended.get(job_id)) for job_id in gone}
        lives |= {job_id: Life(job.is_alive, job=job) for job_id, job in shown.items()}
        return lives | {each.job_id: Life(False) for each in others} | unknown

    @functools.cached_property
    def targets(self) -> dict[str, Path | None]:
        """What the kit's batch script gets in each living job of this user that has it.

        A run directory, a sweep or a spec; None where Slurm shows no arguments of the script: 23.02
        to 25.05 without accounting.
        """
        ours = {
            job_id: (job, words)
            for job_id, job in (self.jobs or {}).items()
            if job.is_alive and job.uid == os.getuid()
            if (words := _argument(job.command)) is not None
        }
        # Since 23.02 %o has no arguments. Source: slurmctld/job_mgr.c, _pack_default_job_details.
        bare = {_array_id(job_id) for job_id, (_, words) in ours.items() if not words}
        lines = submit_lines(bare) if bare else {}
        folders: dict[str, Path | None] = {}
        for job_id, (job, words) in ours.items():
            given = words or _argument(lines.get(_array_id(job_id), "")) or ""
            folders[job_id] = Path(job.work_dir, given).resolve() if given else None
        return folders


def queue(users: Iterable[int] = ()) -> Queue:
    """Return the jobs of this user and of others (uids), by one call of squeue.

    All jobs of the users, because squeue fails as a whole if it does not know a single id.
    Source: squeue(1); %S of a pending job is the start that the backfill scheduler expects, which
    `squeue --start` prints, too.
    """
    of_users = f"--user={','.join(map(str, sorted({os.getuid(), *users})))}"
    # --all: also those in partitions that the site hides, the user's own ones, too.
    columns = ("--all", "--noheader", "--array", "--states=all", f"--format={QUEUE_FORMAT}")
    answer = call(["squeue", *columns, of_users], SLURM_TIME_FORMAT="%s")
    if answer is not None and "Invalid user" in answer.stderr:
        # It leaves out the jobs of a user whom this host does not know: ask for those of all.
        answer = call(["squeue", *columns], SLURM_TIME_FORMAT="%s")
    if answer is None or answer.returncode != 0:
        return Queue(None)
    rows = [row.split(_SEPARATOR) for row in answer.stdout.split(_ROW)[1:]]
    if any(len(row) != _NUM_COLUMNS for row in rows):
        return Queue(None)  # a job that cannot be read has not ended
    return Queue({row[0]: _job_of(row[1:]) for row in rows})


def _job_of(row: Sequence[str]) -> Job:
    """Return the job of a line of squeue, without its id."""
    state, start, left, num_nodes, nodes, reason, uid, work_dir, command = row
    command = command.removesuffix("\n")
    left_s = duration.parse_or_zero(left)
    return Job(
        state=job_state.read(state),
        reason=reason,
        uid=int(uid) if uid.isdecimal() else None,
        work_dir=work_dir,
        command=command,
        start=float(start) if start.isdecimal() else None,
        left_s=left_s or None,
        num_nodes=int(num_nodes) if num_nodes.isdecimal() else 0,
        nodes=nodes,
    )


def ask(jobs: Iterable[RecordedJob]) -> dict[str, Life]:
    """Return whether each of these jobs lives; squeue is asked once for all of them."""
    wanted = list(jobs)
    return queue(job.uid for job in wanted if job.uid is not None).lives_of(wanted)


def newest_in(folder: Path, patience_s: float, others: Collection[str] = ()) -> str | None:
    """Return the job that was queued last with this working directory; None if squeue shows none.

    The kit queues each job with the directory of its run or sweep (sbatch --chdir). It serves where
    sbatch's answer cannot be read. others: jobs that are older. patience_s: how long to look again.
    """
    for pause_s in itertools.chain(client.pauses(patience_s), [0.0]):
        jobs = queue().jobs or {}
        job_ids = {_array_id(job_id) for job_id, job in jobs.items() if _is_queued_in(folder, job)}
        if job_ids := job_ids - {_array_id(each) for each in others}:
            return max(job_ids, key=int)
        time.sleep(pause_s)
    return None


def one_in(folder: Path, ids: Collection[str]) -> str | None:
    """Return which of these jobs has this working directory: it may have ended already.

    ids: numbers in sbatch's answer. One alone counts also where Slurm does not answer.
    """
    job_ids = []
    for job_id in ids:
        job, is_answered = client.ask_about(job_id)
        if not is_answered or (job and (not job.work_dir or _is_in(folder, job))):
            job_ids.append(job_id)
    return client.the_only(job_ids)


def _is_queued_in(folder: Path, job: Job) -> bool:
    return job.is_alive and job.uid == os.getuid() and _is_in(folder, job)


def _is_in(folder: Path, job: Job) -> bool:
    return Path(job.work_dir) in (folder, folder.resolve())


def _argument(command: str) -> str | None:
    """Return what follows the kit's batch script on a command line; None for another script."""
    match = _OURS.search(command)
    return None if match is None else (match[1] or "").strip()


def _array_id(job_id: str) -> str:
    """Return 12 of `12_3`: the tasks of an array have one command line."""
    return job_id.partition("_")[0]


def submit_lines(job_ids: Iterable[str]) -> dict[str, str]:
    """Return the command lines of sbatch for jobs: from sacct, else from scontrol (Slurm 25.11)."""
    wanted = sorted(job_ids)
    rows = _accounting_rows(wanted, "JobID,SubmitLine")
    lines = {_array_id(job_id): line for job_id, line in rows}
    for job_id in wanted:
        if job_id not in lines and (answer := call(["scontrol", "show", "job", job_id])):
            line = re.search(r"^   SubmitLine=(.+)$", answer.stdout, re.MULTILINE)
            lines |= {job_id: line[1]} if line is not None else {}
    return lines


def past_states(job_ids: Iterable[str]) -> dict[str, str]:
    """Return the state of each job in the accounting database; empty if the site has none.

    Source: sacct(1).
    """
    rows = _accounting_rows(job_ids, "JobID,State")
    return {job_id: job_state.read(state) for job_id, state in rows}


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


def _accounting_rows(job_ids: Iterable[str], columns: str) -> list[tuple[str, str]]:
    """Return two columns of sacct for jobs; empty if the site has no accounting database."""
    if shutil.which("sacct") is None:
        return []
    options = ("--noheader", "--parsable2", "--allocations", f"--format={columns}")
    answer = call(["sacct", *options, f"--jobs={','.join(job_ids)}"])
    lines = answer.stdout.splitlines() if answer and answer.returncode == 0 else []
    rows = (line.partition("|") for line in lines if "|" in line)
    return [(first, second) for first, _, second in rows]


def cancelling_user(job_id: str) -> str | None:
    """Return the name of the user who cancelled a job; None where the accounting has none.

    It is the uid where this host does not know the user. Source: sacct(1), State: `CANCELLED by
    UID`.
    """
    if shutil.which("sacct") is None:
        return None
    columns = ("--noheader", "--parsable2", "--allocations", "--format=State")
    answer = call(["sacct", *columns, f"--jobs={job_id}"])
    match = re.search(r"^CANCELLED by (\d+)$", answer.stdout if answer else "", re.MULTILINE)
    return None if match is None else user_name(int(match[1]))
