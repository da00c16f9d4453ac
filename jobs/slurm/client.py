"""Slurm as the kit sees it: the names of its variables, its client commands, parsed answers.

Every call is bounded; an answer that does not come is None, never an exception, because the
run directory is there to fall back on. Standard library only.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.console import say

CALL_TIMEOUT_S = 30
# How long a controller that does not answer is asked again, and how far apart at most.
PATIENCE_S = 600.0
MAX_PAUSE_S = 30.0
SILENCE = "slurmctld does not answer"
# What Slurm's commands say where no controller answered. Source: slurm_errno.c
NO_CONTACT = re.compile(r"[Uu]nable to contact|[Cc]onnection refused|timed out|[Cc]ommunication")
ANSWER_TIMEOUT_S = 3.0
ENDED_STATES = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    }
)


@dataclass(frozen=True)
class Job:
    """One job, from `scontrol show job`."""

    state: str
    reason: str
    restarts: int
    is_preempted: bool
    time_limit: str
    can_requeue: bool = True
    excluded: str = ""  # its ExcNodeList

    @property
    def is_alive(self) -> bool:
        return self.state not in ENDED_STATES


def call(
    argv: Sequence[str], environ: Mapping[str, str] | None = None, **more: str
) -> subprocess.CompletedProcess[str] | None:
    """Run a Slurm command; None where it is missing or does not answer in time.

    `environ`: instead of this process's own environment; `more`: variables besides it.
    """
    env = {**(os.environ if environ is None else environ), **more}
    try:
        return subprocess.run(
            argv, capture_output=True, text=True, timeout=CALL_TIMEOUT_S, check=False, env=env
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def job_id_from(environ: Mapping[str, str]) -> str | None:
    """The job's id as `scontrol requeue` must be told it: ARRAYJOB_TASK in an array.

    The bare id of an array requeues every one of its tasks.
    """
    if "SLURM_ARRAY_JOB_ID" in environ and "SLURM_ARRAY_TASK_ID" in environ:
        return f"{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"
    return environ.get("SLURM_JOB_ID")


def parse_job(text: str) -> Job | None:
    """The job in the text of `scontrol show job`; None if there is none.

    The form of several lines is read, each key at its line's start: in the one-line form a job
    name such as `x JobState=CANCELLED` could pretend anything.
    """
    state = re.search(r"^   JobState=(\S+) Reason=(\S+)", text, re.MULTILINE)
    if state is None:
        return None
    requeue = re.search(r"^   Requeue=(\d+) Restarts=(\d+)", text, re.MULTILINE)
    preempted = re.search(r"^   (?:PreemptEligibleTime=\S+ )?PreemptTime=(\S+)", text, re.MULTILINE)
    excluded = re.search(r"^   ReqNodeList=\S+ ExcNodeList=(\S+)", text, re.MULTILINE)
    limit = re.search(r"^   RunTime=\S+ TimeLimit=(\S+)", text, re.MULTILINE)
    return Job(
        state=state[1],
        reason=state[2],
        restarts=int(requeue[2]) if requeue else 0,
        is_preempted=preempted is not None and preempted[1] not in ("None", "Unknown"),
        time_limit=limit[1] if limit else "",
        can_requeue=requeue is None or requeue[1] != "0",
        excluded=excluded[1] if excluded and excluded[1] != "(null)" else "",
    )


def show_job(job_id: str) -> Job | None:
    """The job as slurmctld knows it now; None if it does not (any more) or does not answer."""
    answer = call(["scontrol", "show", "job", job_id])
    return parse_job(answer.stdout) if answer and answer.returncode == 0 else None


def show_job_patiently(job_id: str) -> Job | None:
    """As `show_job`, but a controller that does not answer is asked again for a while."""
    answer = call_patiently(["scontrol", "show", "job", job_id])
    return parse_job(answer.stdout) if answer and answer.returncode == 0 else None


def call_patiently(
    argv: Sequence[str], environ: Mapping[str, str] | None = None, patience_s: float = PATIENCE_S
) -> subprocess.CompletedProcess[str] | None:
    """As `call`, but a controller that does not answer is asked again for a while."""
    if shutil.which(argv[0]) is None:
        return None
    for pause_s in pauses(patience_s):
        answer = call(argv, environ)
        if is_answered(answer):
            return answer
        say(f"slurmctld does not answer to {argv[0]}, asking again in {pause_s:.0f} s")
        time.sleep(pause_s)
    return call(argv, environ)


def pauses(patience_s: float) -> Iterator[float]:
    """Growing pauses between tries, spread at random, until patience is at an end."""
    pause_s, deadline = 1.0, time.monotonic() + patience_s
    while time.monotonic() < deadline:
        yield pause_s * random.uniform(0.5, 1.5)
        pause_s = min(2 * pause_s, MAX_PAUSE_S)


def is_answered(answer: subprocess.CompletedProcess[str] | None) -> bool:
    """Whether slurmctld itself has answered, with whatever."""
    if answer is None:
        return False
    return answer.returncode == 0 or not NO_CONTACT.search(answer.stderr)


def is_cancelled(state: str, reason: str) -> bool:
    """Whether a job that was not requeued was cancelled.

    While a cancelled job still ends it is COMPLETING with Reason None; at a time limit the reason
    says so.
    """
    return state == "CANCELLED" or (state, reason) == ("COMPLETING", "None")


def restart_count(environ: Mapping[str, str] = os.environ) -> int:
    """How often Slurm had started this job before, whatever the cause."""
    return int(environ.get("SLURM_RESTART_COUNT", "0"))


def is_answering(node: str, port: int) -> bool:
    """Whether a node's slurmd takes connections; a name that nobody knows may well be up."""
    try:
        with socket.create_connection((node, port), ANSWER_TIMEOUT_S):
            return True
    except socket.gaierror:
        return True
    except OSError:
        return False


def end_time(job_id: str, environ: Mapping[str, str] = os.environ) -> float | None:
    """When the job's time limit ends, in seconds since the epoch; None if nobody knows.

    Slurm 22.05 and later say so in the job's environment. Source: sbatch(1), SLURM_JOB_END_TIME.
    """
    told = environ.get("SLURM_JOB_END_TIME", "")
    if not told:
        # As strftime would have it; the default form has no time zone. Source: squeue(1).
        asked = ["squeue", "--noheader", f"--jobs={job_id}", "--format=%e"]
        answer = call(asked, SLURM_TIME_FORMAT="%s")
        told = answer.stdout.strip() if answer and answer.returncode == 0 else ""
    return float(told) if told.isdigit() else None


def has_sbatch() -> bool:
    """Whether sbatch is on PATH."""
    return shutil.which("sbatch") is not None


def is_configured() -> bool:
    """Whether Slurm's commands know a cluster; a package that is only installed does not."""
    answer = call(["sbatch", "--version"])
    return answer is not None and "configuration source" not in answer.stderr


def is_alive(job_id: str, patience_s: float = 0.0) -> bool | None:
    """Whether the job is queued, runs or may come back; None if Slurm does not answer."""
    answer = call_patiently(["scontrol", "show", "job", job_id], patience_s=patience_s)
    if answer is None:
        return None
    if answer.returncode != 0:
        return False if "Invalid job id" in answer.stderr else None
    job = parse_job(answer.stdout)
    return None if job is None else job.is_alive


def job_states(job_ids: Iterable[str]) -> dict[str, str]:
    """The state of each job that Slurm still knows, by one query (squeue, else sacct)."""
    wanted = sorted(set(job_ids))
    if not wanted:
        return {}
    ids = ",".join(wanted)
    states: dict[str, str] = {}
    # All of one user's jobs: for a single unknown id squeue fails instead of answering nothing.
    me = str(os.getuid())
    queue = call(["squeue", "--noheader", "--states=all", f"--user={me}", "--format=%i|%T"])
    if queue and queue.returncode == 0:
        states = dict(line.split("|", 1) for line in queue.stdout.splitlines() if "|" in line)
    if any(job_id not in states for job_id in wanted) and shutil.which("sacct"):
        columns = "--format=JobID,State"
        past = call(["sacct", "--noheader", "--parsable2", "--allocations", columns, "-j", ids])
        if past and past.returncode == 0:
            for line in past.stdout.splitlines():
                job_id, _, state = line.partition("|")
                states.setdefault(job_id, state.split(" ")[0])
    return {job_id: states[job_id] for job_id in wanted if job_id in states}


def requeue(job_id: str) -> tuple[Job | None, str]:
    """Ask Slurm to start the job again, unless it was cancelled or is finished meanwhile.

    `Incomplete` makes the difference: a plain requeue that lands after a scancel brings the job
    back to life. It returns 0 in any case, so the answer is read back. A second request does
    nothing, so one that nobody answered is simply repeated.

    Returns: the job afterwards, and what went wrong, in words; empty if it starts again.
    """
    for pause_s in pauses(PATIENCE_S):
        answer = call(["scontrol", "requeue", "Incomplete", job_id])
        after = show_job_patiently(job_id)
        if after is None:
            return None, SILENCE
        if after.state == "PENDING" or after.restarts > restart_count():
            return after, ""
        if is_answered(answer):
            said = answer.stderr.strip() if answer else ""
            left = f"scontrol requeue left the job {after.state} {after.reason} {said}"
            return after, left.strip()
        time.sleep(pause_s)
    return None, SILENCE


def cluster_name(environ: Mapping[str, str] = os.environ) -> str:
    """The cluster's name inside a job; `slurm` where Slurm does not tell."""
    return environ.get("SLURM_CLUSTER_NAME") or "slurm"


def unloaded_reason(
    environ: Mapping[str, str] = os.environ,
    paths: Sequence[Path] = (Path("/etc/slurm"), Path("/etc/slurm-llnl"), Path("/run/munge")),
) -> str | None:
    """Why this looks like a login node whose Slurm is not loaded; None if it does not.

    On many sites Slurm itself comes by `module load`: no sbatch on PATH does not mean that
    training right here would be welcome.
    """
    if shutil.which("sbatch", path=environ.get("PATH")):
        return None
    if "SLURM_CONF" in environ:
        return "SLURM_CONF is set"
    for path in paths:
        if path.exists():
            return f"{path} exists"
    for folder in filter(None, environ.get("MODULEPATH", "").split(":")):
        if (Path(folder) / "slurm").exists():
            return f"{folder} has a slurm module"
    return None
