"""The jobs of a run: what the commands queued, the Slurm they asked, the owner of the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from . import OMIT_NONE


class RequeueAnswer(StrEnum):
    """What Slurm did after `scontrol requeue`."""

    ACCEPTED = "accepted"  # the job is pending, or has started again
    REFUSED = "refused"  # the job is in another state than that
    NO_ANSWER = "no_answer"  # slurmctld did not answer: the job may have been requeued


@dataclass(frozen=True)
class Submission:
    """submission.json: the job of the run, and sbatch's command line (None after plain sbatch).

    uid: of the user whose job it is. cluster: the Slurm cluster that has it; None: not known.
    nodes_taken_back: when a user last let the run use all nodes again, in seconds since the epoch.
    """

    argv: tuple[str, ...] | None = None
    job_id: str | None = None
    uid: int | None = field(default=None, metadata=OMIT_NONE)
    cluster: str | None = field(default=None, metadata=OMIT_NONE)
    nodes_taken_back: float | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True)
class RecordedJob:
    """A Slurm job as a run directory names it.

    uid: of the user whose job it is. cluster: the one that has the job. None: not known.
    """

    job_id: str
    uid: int | None = None
    cluster: str | None = None


@dataclass(frozen=True)
class Successor:
    """successor.json: job `job_id` starts after the end of job `after`."""

    job_id: str
    after: str


@dataclass(frozen=True)
class SlurmSite:
    """site.json: settings of the Slurm that a run was submitted to.

    A default is Slurm's own. Source: slurm.conf(5).
    """

    kill_wait_s: int = 30  # from SIGTERM to SIGKILL
    slurmd_port: int = 6818
    cluster: str | None = field(default=None, metadata=OMIT_NONE)  # in which the job is queued


@dataclass(frozen=True)
class Owner:
    """A job that may write: a Slurm job with its id, a local one with host, pid and start time.

    restart_count: a requeued job keeps its id, and its earlier start may still run on a node that
    the network cut off.
    """

    job_id: str
    host: str
    pid: int
    pid_start: str  # boot and clock ticks since it: a new process may get the same pid
    restart_count: int = 0
    uid: int | None = field(default=None, metadata=OMIT_NONE)  # of the user who runs it
    cluster: str | None = field(default=None, metadata=OMIT_NONE)  # of a Slurm job

    @property
    def is_local(self) -> bool:
        return self.job_id.startswith("local-")

    @property
    def job(self) -> RecordedJob:
        """The Slurm job of an owner that has one."""
        return RecordedJob(self.job_id, self.uid, self.cluster)

    def is_same_start(self, other: Owner) -> bool:
        """Return whether both belong to one start of one job; the processes may differ."""
        return (self.job_id, self.restart_count) == (other.job_id, other.restart_count)

    def is_restarted_as(self, other: Owner) -> bool:
        """Return whether the other is a later start of the same job."""
        return self.job_id == other.job_id and self.restart_count < other.restart_count


@dataclass(frozen=True, kw_only=True)
class Claim(Owner):
    """owner.json: the job that may write into the run directory, and its attempt."""

    attempt: int
    token: str = "unnamed"  # names this claim; see jobs.runs.run_lock


@dataclass(frozen=True)
class OwningAttempt:
    """The keys of owner.json that the trainer compares with its own attempt and job."""

    attempt: int
    job_id: str | None = None
