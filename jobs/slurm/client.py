"""Runs Slurm's client commands, and parses what they print; one named function for each request.

Every call has a time limit. A missing answer is None and no exception, because the caller can
still decide from the run directory. Standard library only.
"""

import contextlib
import functools
import os
import random
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base import environment
from ..base.console import print_line
from ..contract.records.queued import RequeueAnswer
from . import job_state

CALL_TIMEOUT_S = 30
SBATCH_TIMEOUT_S = 120  # a plugin of the site, or a slow file system, may hold it up
SLOW_S = 3.0
# How long a call is repeated while slurmctld does not answer, and the longest pause between two.
PATIENCE_S = 600.0
MAX_PAUSE_S = 30.0
# What Slurm's commands print if no slurmctld answered. Source: slurm_errno.c
NO_CONTACT = re.compile(
    r"[Uu]nable to contact|[Cc]onnection (refused|timed out|rejected)|timed out|[Cc]ommunication"
    r"|Message send failure|[Cc]ontroller (is )?in standby mode"
    r"|Rate limit exceeded"  # of slurmctld, for requests of one user (Slurm 23.02)
    r"|Connection forced closed by quiesce timeout"  # by a reconfiguration (Slurm 24.11)
    # No munge on this host or on slurmctld's, or clocks that differ: it may come back.
    r"|Munge encode failed|Protocol authentication error|Authentication failure"
    r"|Invalid authentication credential|Authentication credential (expired|invalid)"
    r"|Failed to connect to authentication agent|Can't find an address, check slurm.conf"
)
# What they print if slurmctld got the request and its answer did not come. Source: slurm_errno.c
NO_ANSWER_IN_TIME = re.compile(
    r"timed out on send/recv|Zero Bytes were transmitted|receive failure|shutdown failure"
    r"|Munge decode failed"
)
# What scontrol prints of a job that slurmctld does not have; the second of an array's task.
# Source: slurm_errno.c; scontrol/info_job.c
_UNKNOWN_JOB = re.compile(r"Invalid job id|^Job \S+ not found$", re.MULTILINE)
ANSWER_TIMEOUT_S = 3.0


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


def call(
    argv: Sequence[str], environ: Mapping[str, str] | None = None, folder: str | None = None
) -> subprocess.CompletedProcess[str] | None:
    """Run a Slurm command as `run` does; returns None where that raises."""
    try:
        return run(argv, environ, folder)
    except (OSError, subprocess.TimeoutExpired):
        return None


def run(
    argv: Sequence[str], environ: Mapping[str, str] | None = None, folder: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a Slurm command.

    environ: its whole environment; by default this process's, without the user's filters and
    formats: times are seconds since the epoch. folder: its working directory.
    Raises: OSError if it cannot be started, TimeoutExpired if it takes too long.
    """
    with say_if_slow(argv[0]):
        return subprocess.run(
            argv,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=SBATCH_TIMEOUT_S if Path(argv[0]).name == "sbatch" else CALL_TIMEOUT_S,
            check=False,
            env=environment.for_reading(os.environ) if environ is None else environ,
            cwd=folder,
        )


def output(argv: Sequence[str]) -> str:
    """Return what a Slurm command prints; "" if it fails or does not answer."""
    answer = call(argv)
    return answer.stdout if answer is not None and answer.returncode == 0 else ""


@contextlib.contextmanager
def say_if_slow(program: str) -> Iterator[None]:
    """Write one line to stderr if the block, a call of a Slurm command, takes longer than SLOW_S.

    Without it a user sees nothing for minutes where slurmctld is down.
    """
    text = f"still waiting for {Path(program).name} ({SLOW_S:.0f} s)"
    timer = threading.Timer(SLOW_S, print_line, [text])
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # no thread at the limit of processes
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def job_id_from(environ: Mapping[str, str]) -> str | None:
    """Return the id of the enclosing job for `scontrol requeue`: ARRAYJOB_TASK in an array.

    The id of the array alone would requeue all its tasks.
    """
    if "SLURM_ARRAY_JOB_ID" in environ and "SLURM_ARRAY_TASK_ID" in environ:
        return f"{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"
    return environ.get("SLURM_JOB_ID")


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
    answer = call_patiently(["scontrol", "show", "job", job_id], patience_s=patience_s)
    if answer is None:
        return None, False
    if answer.returncode != 0:
        return None, _UNKNOWN_JOB.search(answer.stdout + answer.stderr) is not None
    job = parse_job(answer.stdout)
    return job, job is not None


def plain_job_id(job_id: str) -> str:
    """Return the id that srun takes: that of an array's task (`12_3`) is a number, too."""
    if "_" not in job_id:
        return job_id
    match = re.search(r"^JobId=(\d+)", output(["scontrol", "show", "job", job_id]), re.MULTILINE)
    return match[1] if match else job_id


def step_argv(job_id: str, node: str, command: Sequence[str], has_terminal: bool) -> list[str]:
    """Return the srun command line that runs a command on a node of a running job.

    It shares the resources of the job's other steps. Source: srun(1), --overlap (Slurm 20.11).
    Where memory is a resource, they have all of it: that takes --mem=0, too (measured: 22.05).
    """
    place = [f"--jobid={job_id}", f"--nodelist={node}", "--nodes=1", "--ntasks=1"]
    shared = ["--overlap", "--mem=0", "--export=ALL"]
    return ["srun", *place, *shared, *(["--pty"] if has_terminal else []), *command]


def show_job(job_id: str, patience_s: float = 0.0) -> Job | None:
    """Return the job's record in slurmctld; None if slurmctld has none or does not answer."""
    return ask_about(job_id, patience_s)[0]


def call_patiently(
    argv: Sequence[str],
    environ: Mapping[str, str] | None = None,
    patience_s: float = PATIENCE_S,
    is_repeatable: bool = True,
) -> subprocess.CompletedProcess[str] | None:
    """Run a Slurm command as `call` does, repeated for up to `patience_s` without an answer.

    is_repeatable: also where slurmctld may have got the request, and its answer alone was lost.
    """
    for pause_s in pauses(patience_s):
        answer = call(argv, environ)
        is_lost = answer is None or NO_ANSWER_IN_TIME.search(answer.stderr)
        is_last = shutil.which(argv[0]) is None or (is_lost and not is_repeatable)
        if is_last or is_answered(answer):
            return answer
        print_line(f"slurmctld does not answer {argv[0]}, next try in {pause_s:.0f} s")
        time.sleep(pause_s)
    return call(argv, environ)


def pauses(patience_s: float) -> Iterator[float]:
    """Yield growing pauses in seconds, spread at random, until `patience_s` have passed."""
    pause_s, deadline = 1.0, time.monotonic() + patience_s
    while time.monotonic() < deadline:
        yield pause_s * random.uniform(0.5, 1.5)
        pause_s = min(2 * pause_s, MAX_PAUSE_S)


def is_answered(answer: subprocess.CompletedProcess[str] | None) -> bool:
    """Return whether slurmctld itself answered, even with an error."""
    if answer is None:
        return False
    if answer.returncode == 0:
        return True
    return not any(each.search(answer.stderr) for each in (NO_CONTACT, NO_ANSWER_IN_TIME))


def restart_count(environ: Mapping[str, str] = os.environ) -> int:
    """Return how often Slurm started this job before this start, for any cause."""
    return int(environ.get("SLURM_RESTART_COUNT", "0"))


def is_answering(node: str, port: int, is_refusal_enough: bool = False) -> bool:
    """Return whether a node's slurmd accepts connections; True if the name is not resolved here.

    is_refusal_enough: a refused connection counts, too: it shows that the node is up.
    """
    try:
        with socket.create_connection((node, port), ANSWER_TIMEOUT_S):
            return True
    except socket.gaierror:
        return True
    except ConnectionRefusedError:
        # slurmd listens on IPv4 only (measured: 22.05), unless the site has set EnableIPv6. Source:
        # slurm.conf(5), CommunicationParameters.
        return is_refusal_enough or not _has_ipv4(node)
    except OSError:
        return False


def _has_ipv4(node: str) -> bool:
    """Return whether this name or address has an IPv4 address."""
    try:
        return bool(socket.getaddrinfo(node, None, socket.AF_INET))
    except socket.gaierror:
        return False


def end_time(job_id: str, environ: Mapping[str, str] = os.environ) -> float | None:
    """Return when the job's time limit ends, in seconds since the epoch; None if unknown.

    Slurm 22.05 has no SLURM_JOB_END_TIME in the job's environment: squeue prints it there.
    """
    end = environ.get("SLURM_JOB_END_TIME", "")
    if not end:
        end = output(["squeue", "--noheader", f"--jobs={job_id}", "--format=%e"]).strip()
    return float(end) if end.isdigit() else None


def is_installed() -> bool:
    """Return whether this host has Slurm's commands."""
    return shutil.which("sbatch") is not None


def node_addresses(nodes: Iterable[str]) -> dict[str, str]:
    """Return the address, or the host name, at which Slurm reaches each node; see `of_nodes`.

    It is the node's own name where the site has set none. Source: slurm.conf(5), NodeAddr.
    """
    return of_nodes(nodes, r"(?:.* )?NodeAddr=(\S+)")


def of_nodes(nodes: Iterable[str], pattern: str) -> dict[str, str]:
    """Return what a pattern at the start of a line of `scontrol show node` finds of each node.

    Empty if Slurm does not answer.
    """
    text = output(["scontrol", "show", "node", ",".join(nodes)])
    blocks = re.split(r"^NodeName=(\S+)", text, flags=re.MULTILINE)
    values = {
        name: re.search(rf"^   {pattern}", block, re.MULTILINE)
        for name, block in zip(blocks[1::2], blocks[2::2], strict=True)
    }
    return {name: value[1] for name, value in values.items() if value is not None}


def signal_steps(job_id: str, name: str) -> bool:
    """Send a signal, such as SIGUSR1, to all srun steps of a job; whether Slurm accepted it.

    Its batch shell gets none. Source: scancel(1), --signal, --batch.
    """
    answer = call(["scancel", f"--signal={name.removeprefix('SIG')}", job_id])
    return answer is not None and answer.returncode == 0


def cancel(*ids: str) -> subprocess.CompletedProcess[str] | None:
    """Cancel jobs (`12`, `12_3`) or srun steps (`12.0`); None if scancel is missing or hangs."""
    return call(["scancel", *ids])


# What sbatch prints; with --parsable, and by wrappers of some sites, a line with the bare id.
# Source: sbatch/sbatch.c, main; sbatch(1), --parsable.
_SUBMITTED = re.compile(r"Submitted\s+batch\s+job\s+(\d+)", re.IGNORECASE)
_BARE_ID = re.compile(r"^\s*(\d+)(?:;\S+)?\s*$", re.MULTILINE)


def submitted_job(text: str) -> str | None:
    """Return the job id in sbatch's answer; None if it has none."""
    found = _SUBMITTED.search(text) or _BARE_ID.search(text)
    return None if found is None else found[1]


def submit(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[str | None, str]:
    """Run an sbatch command line; returns the job id, and why there is none.

    It is not repeated if the answer alone was lost: a second job must not be queued.
    """
    if shutil.which(argv[0]) is None:
        return None, "sbatch is missing"
    answer = call_patiently(argv, environ, is_repeatable=False)
    if answer is None:
        text = "sbatch does not answer"
    else:
        text = f"{answer.stdout}\n{answer.stderr}".strip()
        if NO_ANSWER_IN_TIME.search(answer.stderr) is None:
            return (submitted_job(text) if answer.returncode == 0 else None), text
    return None, f"{text}: the job may be queued, squeue --me shows it"


def test_only(
    argv: Sequence[str], environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str] | None:
    """Ask Slurm whether it would accept an sbatch command line; it exits with 0 if so.

    Nothing is queued. None if sbatch is missing or does not answer.
    """
    return call([argv[0], "--test-only", *argv[1:]], environ)


def set_excluded(job_id: str, nodes: Iterable[str]) -> str:
    """Replace the list of nodes that the job may not get; returns Slurm's error, empty if none."""
    answer = call(["scontrol", "update", f"JobId={job_id}", f"ExcNodeList={','.join(nodes)}"])
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
        answer = call(["scontrol", "update", f"JobId={job_id}", listed], folder=folder)
    return answer is not None and answer.returncode == 0


def forbid_requeue(job_id: str) -> None:
    """Set Requeue=0 on a job that is about to end with an error and must not start again.

    Without it, any exit code but 0 puts an expedited job (--requeue=expedite, Slurm 25.11) into
    REQUEUE_HOLD, RequeueExit and RequeueExitHold of the site do so with any job, and a node that
    fails meanwhile starts it again. Source: slurmctld/job_mgr.c, _set_job_requeue_exit_value.
    """
    call(["scontrol", "update", f"JobId={job_id}", "Requeue=0"])


@dataclass(frozen=True)
class RequeueResult:
    """The result of a requested requeue."""

    answer: RequeueAnswer
    job: Job | None  # afterwards; None without an answer
    problem: str = ""  # for the user, where the job does not start again


def requeue(job_id: str) -> RequeueResult:
    """Ask Slurm to start the job again, unless it was cancelled or has completed meanwhile.

    `Incomplete` is needed: a plain requeue after a scancel starts the cancelled job again. scontrol
    exits with 0 in either case, so the job's state is read afterwards. A second request has no
    effect, so a request without an answer is repeated.
    """
    answer = None
    for pause_s in pauses(PATIENCE_S):
        answer = call(["scontrol", "requeue", "Incomplete", job_id])
        after = show_job(job_id, PATIENCE_S)
        if after is None:
            break
        is_counted = after.state in job_state.WAITING or after.restarts > restart_count()
        if is_counted and after.is_alive:  # a scancel may follow the requeue
            return RequeueResult(RequeueAnswer.ACCEPTED, after)
        if is_answered(answer):
            error = answer.stderr.strip() if answer else ""
            left = f"scontrol requeue left the job {after.state} {after.reason} {error}"
            return RequeueResult(RequeueAnswer.REFUSED, after, left.strip())
        time.sleep(pause_s)
    problem = "slurmctld does not answer"
    if answer is not None and is_answered(answer):  # it lost its state, or the job ended long ago
        problem = f"slurmctld does not know job {job_id}: {answer.stderr.strip()}"
    return RequeueResult(RequeueAnswer.NO_ANSWER, None, problem)


def cluster_name() -> str:
    """Return the cluster's name inside a job; `slurm` if Slurm does not set it."""
    return os.environ.get("SLURM_CLUSTER_NAME") or "slurm"


# Of a host that belongs to a cluster; the last with a fetched configuration (sackd, Slurm 23.11).
CLUSTER_PATHS = tuple(map(Path, ("/etc/slurm", "/etc/slurm-llnl", "/run/munge", "/run/slurm")))


def unloaded_reason(
    environ: Mapping[str, str] = os.environ, paths: Sequence[Path] = CLUSTER_PATHS
) -> str | None:
    """Return why this looks like a login node whose Slurm is not loaded; None if it does not.

    On many sites `module load` puts sbatch on PATH. Users must not train on such a login node.
    """
    folders = filter(None, environ.get("MODULEPATH", "").split(":"))
    reasons = (
        *(f"{name} is set" for name in ("SLURM_CONF", "SLURM_CONF_SERVER") if name in environ),
        *(f"{path} exists" for path in paths if path.exists()),
        *(f"{folder} has a slurm module" for folder in folders if Path(folder, "slurm").exists()),
    )
    return next(iter(reasons), None)
