"""What passes between an attempt and its nodes: its plan, and the ends of agents and ranks."""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ...base import files
from ..kinds import Kind
from ..rundir import RunDir
from . import OMIT_NONE, read

# Slurm's name of this node, for the ranks. A container may hide Slurm's own variables.
NODE = "KIT_NODE"


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """Return Slurm's name of this node, which `exclude` and `srun -w` take; the host's outside.

    On clouds the host has another name. Source: slurm.conf(5), NodeName, NodeHostname.
    """
    return environ.get(NODE) or environ.get("SLURMD_NODENAME") or socket.gethostname()


@dataclass(frozen=True)
class Head:
    """Where the agents of an attempt meet, by the first node."""

    address: str  # IPv4 or IPv6
    how: str  # how it was found
    port: int
    interfaces: tuple[str, ...] = ()  # each as `eth0 10.0.0.5`

    @property
    def endpoint(self) -> str:
        """What torchrun reads as --rdzv-endpoint; an IPv6 address stands in brackets."""
        is_ipv6 = ":" in self.address
        return f"[{self.address}]:{self.port}" if is_ipv6 else f"{self.address}:{self.port}"


@dataclass(frozen=True)
class Chosen:
    """The nodes of an attempt, where a plugin chooses them from those of the job.

    head: where its agents meet; None: on this node. srun_args: options of srun. lost: returns the
    nodes without whose answer srun must end; called several times a second. note: about the other
    nodes of the job, for job.log.
    """

    nodes: tuple[str, ...]
    head: Head | None = None
    srun_args: Sequence[str] = ()
    lost: Callable[[], Sequence[str]] = tuple
    note: str = ""


@dataclass(frozen=True)
class AttemptPlan:
    """plan.json: what `attempt.open` decided. Every agent reads it."""

    attempt: int
    job_id: str
    nodes: tuple[str, ...]
    head: Head
    start: float  # since the epoch
    deadline: float | None  # end of the time limit, seconds since the epoch
    checkpoint: str | None = None  # the newest checkpoint at the start
    quarantined: tuple[str, ...] = ()  # damaged checkpoints put aside before the start
    code: str | None = field(default=None, metadata=OMIT_NONE)  # name of the frozen code
    # Names of the frozen code and the kit: results may depend on them.
    code_digest: str | None = field(default=None, metadata=OMIT_NONE)
    plugins: Mapping[str, object] = field(default_factory=dict)

    @property
    def rdzv_id(self) -> str:
        """The id of the rendezvous: ranks of an earlier attempt must not meet those of this one."""
        return f"{self.job_id}-{self.attempt}"

    @property
    def is_local(self) -> bool:
        """Whether no Slurm job runs the attempt; its nodes have no names of Slurm then."""
        return self.job_id.startswith("local-")

    def name_of(self, node_rank: int, environ: Mapping[str, str]) -> str:
        """Return the name of the node with this rank, as `node_name`."""
        is_known = self.is_local or environ.get("SLURMD_NODENAME") in self.nodes
        if is_known or node_rank >= len(self.nodes):
            return node_name({**environ, NODE: ""})
        return self.nodes[node_rank]


@dataclass(frozen=True)
class ReceivedSignal:
    """A stop signal that an agent received first at `t`, seconds since the epoch."""

    t: float
    signal: str


@dataclass(frozen=True)
class RankError:
    """rank-RRRRR.error.json: why a rank failed."""

    time: float  # since the epoch
    rank: int
    host: str
    error: str
    kind: Kind = Kind.UNKNOWN
    traceback: str = ""
    caused_by_peer: bool = False  # another rank or node failed first
    would_repeat: bool = False  # a retry would end with the same error
    # Of a user's script: the exit code of its process; -N: ended by signal N.
    exit_code: int | None = field(default=None, metadata=OMIT_NONE)
    # The rank that wrote this record for one that does not answer.
    reporter: int | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True)
class AgentRecord:
    """agent-NNNNN.json: the stop signals that an agent received, and how its torchrun ended."""

    host: str
    address: str | None = None  # the node's address towards the first node
    step_id: str | None = None  # of the srun step that started the agent
    signals: tuple[ReceivedSignal, ...] = ()
    torchrun_exit: int | None = None  # -N: ended by signal N; None while it runs
    end: float | None = None  # since the epoch; None while torchrun runs
    # Why the agent started no torchrun: a mistake in the spec, which a retry would repeat.
    error: str | None = field(default=None, metadata=OMIT_NONE)
    oom_kill: int = 0  # processes of the node that the kernel killed for memory
    # What they could use: the limit of the job; None: all of the node.
    memory_limit_mib: int | None = field(default=None, metadata=OMIT_NONE)
    # That its ranks see, of those that the job asked for; None: it asked for none.
    gpus: int | None = field(default=None, metadata=OMIT_NONE)
    # What its ranks left, once the agent has ended: which of them began, and their error records.
    ranks: tuple[int, ...] = ()
    errors: tuple[RankError, ...] = ()

    @property
    def has_failed(self) -> bool:
        """Whether its torchrun ended with an error or could not be started."""
        return bool(self.torchrun_exit) or self.error is not None


@dataclass(frozen=True)
class HangConclusion:
    """hang.json: which ranks did not answer, by the rank that found the hang first."""

    rank: int
    error: str
    unresponsive: tuple[int, ...]
    waited_for: tuple[int, ...] = ()  # the ranks for which the others wait
    hosts: tuple[str, ...] = ()  # of these ranks
    # The file and the line at which the first of them is; None: it did not answer.
    place: str | None = field(default=None, metadata=OMIT_NONE)


def read_agents(run_dir: RunDir, attempt: int) -> list[AgentRecord]:
    """Return the records that the agents of an attempt have written so far."""
    paths = files.files_in(run_dir.attempt(attempt).path, "agent-*.json")
    return [record for path in paths if (record := read(AgentRecord, path)) is not None]
