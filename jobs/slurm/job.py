"""What Slurm shows of one job, and the requests about it. Standard library only."""

import functools
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..contract.records.queued import RequeueAnswer
from . import ask, job_state

# What scontrol prints of a job that slurmctld does not have; the second of an array's task.
# Source: slurm_errno.c; scontrol/info_job.c
_UNKNOWN_JOB = re.compile(r"Invalid job id|^Job \S+ not found$", re.MULTILINE)


@dataclass(frozen=True)
class Job:
    """One job, from `scontrol show job`, or from a line of squeue, which has fewer fields."""

    state: str
    reason: str = "None"
    restarts: int = 0
    is_preempted: bool = False
    can_requeue: bool = True
    excluded: str = ""  # its ExcNodeList
    uid: int | None = None  # of its user
    nodes: str = ""  # as Slurm writes a list, n[1-2]; empty for a pending job
    # From squeue alone:
    start: float | None = None  # seconds since the epoch; of a pending job the expected start
    left_s: int | None = None  # until the time limit; None without one
    num_nodes: int = 0
    text: str = ""  # what scontrol printed: see `field_of`

    @property
    def is_alive(self) -> bool:
        """Whether it waits, runs or may start again; also in a state that is not known."""
        return self.state not in job_state.ENDED


def job_id_from(environ: Mapping[str, str]) -> str | None:
    """Return the id of the enclosing job for `scontrol requeue`: ARRAYJOB_TASK in an array.

    The id of the array alone would requeue all its tasks.
    """
    if "SLURM_ARRAY_JOB_ID" in environ and "SLURM_ARRAY_TASK_ID" in environ:
        return f"{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"
    return environ.get("SLURM_JOB_ID")


def restart_count(environ: Mapping[str, str] = os.environ) -> int:
    """Return how often Slurm started this job before this start, for any cause."""
    return int(environ.get("SLURM_RESTART_COUNT", "0"))


def end_time(job_id: str, environ: Mapping[str, str] = os.environ) -> float | None:
    """Return when the job's time limit ends, in seconds since the epoch; None if unknown.

    Slurm 22.05 has no SLURM_JOB_END_TIME in the job's environment: squeue prints it there.
    """
    end = environ.get("SLURM_JOB_END_TIME", "")
    if not end:
        end = ask.output(["squeue", "--noheader", f"--jobs={job_id}", "--format=%e"]).strip()
    return float(end) if end.isdigit() else None


def field_of(text: str, pattern: str) -> str:
    """Return the first group of a pattern in a job that scontrol printed; "" where it has none.

    Only the form of several lines is read, each key at the start of its line: in the one-line form
    a job name such as `x JobState=CANCELLED` would look like that key.
    """
    found = re.search(rf"^   {pattern}", text, re.MULTILINE)
    return "" if found is None or found[1] in ("(null)", "None", "Unknown") else found[1]


def parse_job(text: str) -> Job | None:
    """Return the job in the output of `scontrol show job`; None if the output has none."""
    value = functools.partial(field_of, text)
    if not (state := value(r"JobState=(\S+) Reason=\S+")):
        return None
    uid = value(r"UserId=\S*?\((\d+)\)")
    return Job(
        state=job_state.read(state),
        reason=value(r"JobState=\S+ Reason=(\S+)") or "None",
        restarts=int(value(r"Requeue=\d+ Restarts=(\d+)") or 0),
        is_preempted=bool(value(r"(?:PreemptEligibleTime=\S+ )?PreemptTime=(\S+)")),
        can_requeue=value(r"Requeue=(\d+) ") != "0",
        excluded=value(r"ReqNodeList=\S+ ExcNodeList=(\S+)"),
        uid=int(uid) if uid else None,
        nodes=value(r"NodeList=([^(\s]\S*)"),
        text=text,
    )


def ask_about(job_id: str, patience_s: float) -> tuple[Job | None, bool]:
    """Return the job's record in slurmctld, and whether slurmctld answered: it may have none.

    patience_s: how long the call is repeated while slurmctld does not answer.
    """
    answer = ask.call_patiently(["scontrol", "show", "job", job_id], patience_s=patience_s)
    if answer is None:
        return None, False
    if answer.returncode != 0:
        return None, _UNKNOWN_JOB.search(answer.stdout + answer.stderr) is not None
    job = parse_job(answer.stdout)
    return job, job is not None


def show_job(job_id: str, patience_s: float = 0.0) -> Job | None:
    """Return the job's record in slurmctld; None if slurmctld has none or does not answer."""
    return ask_about(job_id, patience_s)[0]


def plain_job_id(job_id: str) -> str:
    """Return the id that srun takes: that of an array's task (`12_3`) is a number, too."""
    if "_" not in job_id:
        return job_id
    match = re.match(r"JobId=(\d+)", ask.output(["scontrol", "show", "job", job_id]))
    return match[1] if match else job_id


def step_argv(job_id: str, node: str, command: Sequence[str], has_terminal: bool) -> list[str]:
    """Return the srun command line that runs a command on a node of a running job.

    It shares the resources of the job's other steps. Source: srun(1), --overlap (Slurm 20.11).
    Where memory is a resource, they have all of it: that takes --mem=0, too (measured: 22.05).
    """
    place = [f"--jobid={job_id}", f"--nodelist={node}", "--nodes=1", "--ntasks=1"]
    shared = ["--overlap", "--mem=0", "--export=ALL"]
    return ["srun", *place, *shared, *(["--pty"] if has_terminal else []), *command]


def signal_steps(job_id: str, name: str) -> bool:
    """Send a signal, such as SIGUSR1, to all srun steps of a job; whether Slurm accepted it.

    Its batch shell gets none. Source: scancel(1), --signal, --batch.
    """
    answer = ask.call(["scancel", f"--signal={name.removeprefix('SIG')}", job_id])
    return answer is not None and answer.returncode == 0


def run_scancel(*ids: str) -> subprocess.CompletedProcess[str] | None:
    """Cancel jobs (`12`, `12_3`) or srun steps (`12.0`); None if scancel is missing or hangs."""
    return ask.call(["scancel", *ids])


def set_excluded(job_id: str, nodes: Iterable[str]) -> str:
    """Replace the list of nodes that the job may not get; returns Slurm's error, empty if none."""
    answer = ask.call(["scontrol", "update", f"JobId={job_id}", f"ExcNodeList={','.join(nodes)}"])
    if answer is None:
        return "Slurm does not answer"
    return "" if answer.returncode == 0 else answer.stderr.strip()


def keep_nodes(job_id: str, nodes: Iterable[str]) -> bool:
    """Give the other nodes of a running job back to Slurm; whether it accepted that.

    Else Slurm ends the job as soon as it marks a lost node DOWN. Measured on 22.05.8: it takes
    45 ms, also for a node that does not answer. scontrol writes two scripts into its directory.
    """
    listed = f"NodeList={','.join(nodes)}"
    with tempfile.TemporaryDirectory() as folder:
        answer = ask.call(["scontrol", "update", f"JobId={job_id}", listed], folder=folder)
    return answer is not None and answer.returncode == 0


def forbid_requeue(job_id: str) -> None:
    """Set Requeue=0 on a job that is about to end with an error and must not start again.

    Without it, any exit code but 0 puts an expedited job (--requeue=expedite, Slurm 25.11) into
    REQUEUE_HOLD, RequeueExit and RequeueExitHold of the site do so with any job, and a node that
    fails meanwhile starts it again. Source: slurmctld/job_mgr.c, _set_job_requeue_exit_value.
    """
    ask.call(["scontrol", "update", f"JobId={job_id}", "Requeue=0"])


@dataclass(frozen=True)
class RequeueResult:
    """The result of a requested requeue."""

    answer: RequeueAnswer
    job: Job | None  # afterwards; None without an answer
    problem: str = ""  # for the user, where the job does not start again


def request_requeue(job_id: str) -> RequeueResult:
    """Ask Slurm to start the job again, unless it was cancelled or has completed meanwhile.

    `Incomplete` is needed: a plain requeue after a scancel starts the cancelled job again. scontrol
    exits with 0 in either case, so the job's state is read afterwards. A second request has no
    effect, so a request without an answer is repeated.
    """
    answer = None
    for pause_s in ask.pauses(ask.PATIENCE_S):
        answer = ask.call(["scontrol", "requeue", "Incomplete", job_id])
        after = show_job(job_id, ask.PATIENCE_S)
        if after is None:
            break
        is_counted = after.state in job_state.WAITING or after.restarts > restart_count()
        if is_counted and after.is_alive:  # a scancel may follow the requeue
            return RequeueResult(RequeueAnswer.ACCEPTED, after)
        if ask.is_answered(answer):
            error = answer.stderr.strip() if answer else ""
            left = f"scontrol requeue left the job {after.state} {after.reason} {error}"
            return RequeueResult(RequeueAnswer.REFUSED, after, left.strip())
        time.sleep(pause_s)
    problem = "slurmctld does not answer"
    if answer is not None and ask.is_answered(answer):  # it lost its state, or the job is old
        problem = f"slurmctld does not know job {job_id}: {answer.stderr.strip()}"
    return RequeueResult(RequeueAnswer.NO_ANSWER, None, problem)
