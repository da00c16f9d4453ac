"""The content of each file in a run directory, one frozen dataclass per file, and its codec.

A field is a key of the JSON object, and its type hint is the type that the key must have. One
version of the kit writes a file and another one may read it (a run keeps the code that it was
submitted with, the commands come from the checkout), so keys that a class does not have are
ignored and a field with a default may be missing. Changes that go beyond that raise
`jobs.rundir.FORMAT`. Standard library only; the trainer imports this module.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, TypeVar

from slurm_job_kit.jobs.errors import UserError
from slurm_job_kit.jobs.rundir import RunDir, append_jsonl, read_json, read_jsonl, write_atomic

Record = TypeVar("Record")

# Metadata of a field: a tuple of (name, value) records is written as one JSON object.
AS_OBJECT = {"as_object": True}
# Metadata of a field: the key is left out of the file while the value is None.
OMIT_NONE = {"omit_none": True}


class RecordError(UserError, ValueError):
    """A file of the run directory has not the content that it should; names file and key."""


class Action(StrEnum):
    """What the batch script does after an attempt."""

    DONE = "done"  # the run is complete
    RETRY = "retry"  # start a new srun step in this allocation
    REQUEUE = "requeue"  # ask Slurm to start the job again
    SUCCESSOR = "successor"  # leave the run to the job that waits for the end of this one
    WAIT = "wait"  # Slurm requeues the job without our request
    HOLD = "hold"  # stop with the reason; only a resume continues the run
    CANCEL = "cancel"  # the job was cancelled: the run never continues without a resume


class Cause(StrEnum):
    """What ended an attempt."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    TIME_LIMIT = "time_limit"
    PREEMPTION = "preemption"
    MANUAL_STOP = "manual_stop"  # a stop signal sent by hand: scancel --signal=TERM
    INTERRUPTED = "interrupted"  # Ctrl-C or cancel of a local run
    REQUEUED = "requeued"  # by an administrator, or by Slurm itself
    CRASH = "crash"
    HANG = "hang"  # no rank made progress, and a watchdog ended the attempt
    OUT_OF_MEMORY = "out_of_memory"  # a crash that the next attempt may well repeat
    NODE = "node"  # a node was lost, or failed its preflight
    LOST = "lost"  # the batch script was killed before it recorded the attempt


class RequeueAnswer(StrEnum):
    """What Slurm did after `scontrol requeue`."""

    ACCEPTED = "accepted"  # the job is pending, or has started again
    REFUSED = "refused"  # the job is in another state than that
    NO_ANSWER = "no_answer"  # slurmctld did not answer: the job may have been requeued


# What a person corrects before the run can go on. None: nothing, or it is not known.
Mistake = Literal["code", "spec"]


@dataclass(frozen=True)
class AttemptPlan:
    """plan.json: what `attempt open` decided. Every agent reads it."""

    attempt: int
    job_id: str
    nodes: tuple[str, ...]
    head_address: str  # IPv4 or IPv6 address of the first node
    head_address_is: str  # how that address was found
    rdzv_endpoint: str  # address:port, or [address]:port for IPv6
    rdzv_id: str
    start: float  # seconds since the epoch
    deadline: float | None  # end of the time limit, seconds since the epoch
    checkpoint: str | None = None  # the newest checkpoint at the start
    quarantined: tuple[str, ...] = ()  # damaged checkpoints put aside before the start
    code: str | None = field(default=None, metadata=OMIT_NONE)  # name of the frozen code
    # SHA-256 of those files of the code that results may depend on.
    code_digest: str | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True)
class ReceivedSignal:
    """A stop signal that an agent received first at `t`, seconds since the epoch."""

    t: float
    signal: str


@dataclass(frozen=True)
class AgentRecord:
    """agent-NNNNN.json: the stop signals that an agent received, and how its torchrun ended."""

    host: str
    address: str | None = None  # the node's address towards the first node
    step_id: str | None = None  # of the srun step that started the agent
    signals: tuple[ReceivedSignal, ...] = ()
    torchrun_exit: int | None = None  # -N: ended by signal N; None while it runs
    end: float | None = None  # seconds since the epoch; None while torchrun runs
    # Why the agent started no torchrun: a mistake in the spec, which a retry would repeat.
    error: str | None = field(default=None, metadata=OMIT_NONE)
    oom_kill: int = 0  # processes of the node that the kernel killed for memory
    interpreter: str | None = None  # of the agent, so of torchrun and the ranks
    python: str | None = None  # its version


# "stopped": the rank was asked to stop before it reached its training loop.
ErrorKind = Literal["error", "hang", "bad_node", "out_of_memory", "stopped"]


@dataclass(frozen=True)
class RankError:
    """rank-RRRRR.error.json: why a rank failed."""

    time: float  # seconds since the epoch
    rank: int
    host: str
    error: str
    kind: ErrorKind = "error"
    traceback: str = ""
    caused_by_peer: bool = False  # another rank or node failed first
    is_user_error: bool = False  # in the spec or the launch: a retry would repeat it
    # Of a user's script: the exit code of its process; -N: ended by signal N.
    exit_code: int | None = field(default=None, metadata=OMIT_NONE)
    # The rank that wrote this record for one that does not answer.
    told_by: int | None = field(default=None, metadata=OMIT_NONE)
    mistake: Mistake | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True)
class Metric:
    """A metric, by its name."""

    name: str
    value: float | None


@dataclass(frozen=True)
class Best:
    """The step with the best value of the metric that checkpoint.best names."""

    metric: str | None = field(default=None, metadata=OMIT_NONE)  # all None: there is none yet
    value: float | None = field(default=None, metadata=OMIT_NONE)
    step: int | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True)
class Outcome:
    """outcome.json: how the training of an attempt ended, by rank 0 or by a user's kit_stop.py.

    kit_stop.py writes the first two keys. The trainer writes the first four, and all of them when
    the training is complete: `attempt close` copies them into result.json.
    """

    status: Literal["completed", "stopped"] | None = None
    global_step: int | None = None
    epoch: int | None = field(default=None, metadata=OMIT_NONE)
    checkpoint: str | None = field(default=None, metadata=OMIT_NONE)
    metrics: tuple[Metric, ...] | None = field(default=None, metadata=AS_OBJECT | OMIT_NONE)
    weights_sha256: str | None = field(default=None, metadata=OMIT_NONE)
    optimizer_sha256: str | None = field(default=None, metadata=OMIT_NONE)
    best: Best | None = field(default=None, metadata=OMIT_NONE)
    exactness: str | None = field(default=None, metadata=OMIT_NONE)
    exactness_reason: str | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True)
class Evidence:
    """What is known when an attempt has ended. `attempts.jsonl` keeps it beside the decision."""

    # The status in outcome.json: completed, stopped, or None. For a user's script that wrote none
    # it follows from the exit codes: all 0 is completed, but stopped if the script was warned and
    # sent its stop signal.
    outcome: str | None
    job_state: str  # Slurm's JobState; LOCAL without Slurm, UNKNOWN without an answer
    job_reason: str  # Slurm's Reason
    signals: tuple[str, ...]  # stop signals that reached an agent, in order
    is_preempted: bool  # Slurm has a PreemptTime for this start of the job
    has_progress: bool  # a checkpoint was committed during the attempt
    error: str | None  # the first failing rank, its node and its error
    # An optimizer step was finished; True for a user's script that never reported a step.
    has_step: bool = False
    is_requeued: bool = False  # Slurm has counted the job's next start already
    is_user_error: bool = False  # the error is in the spec or the launch: a retry would repeat it
    is_hang: bool = False  # the error is that no rank made progress
    is_out_of_memory: bool = False  # of a GPU or of the node
    is_near_limit: bool = False  # a retry in this allocation might miss the time limit's warning
    can_requeue: bool = True  # Slurm may start this very job again
    # Slurm requeues the job once it has ended; see jobs.attempt.requeue_policy.
    is_left_to_slurm: bool = False
    has_successor: bool = False  # another job waits for the end of this one
    bad_nodes: tuple[str, ...] = ()  # nodes that failed the preflight
    unreachable_nodes: tuple[str, ...] = ()  # nodes whose agent never ended, and that do not answer
    rebooted_nodes: tuple[str, ...] = ()  # of a lost attempt: nodes that booted after it began
    is_stopped_in_startup: bool = False  # a rank was asked to stop before its training loop
    mistake: Mistake | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True)
class AttemptRecord:
    """A line of attempts.jsonl: what ended an attempt, and what was decided."""

    attempt: int
    job_id: str | None
    nodes: tuple[str, ...] | None
    start: float | None  # seconds since the epoch; None where the plan is lost
    stop: float  # seconds since the epoch
    cause: Cause
    first_step: int | None  # the optimizer steps that the attempt did; None where it did none
    last_step: int | None
    stop_s: float | None  # from the first warning to the record
    start_s: float | None  # from the opening to the first step
    checkpoint: str | None  # the newest one at the end
    quarantined: tuple[str, ...]  # checkpoints that this attempt found damaged
    decision: Action
    reason: str
    evidence: Evidence
    # What Slurm did with the requeue that the first record of the attempt decided on.
    requeue: RequeueAnswer | None = field(default=None, metadata=OMIT_NONE)
    code: str | None = field(default=None, metadata=OMIT_NONE)  # name of the frozen code


@dataclass(frozen=True)
class CodeSpan:
    """Optimizer steps of a run that one frozen code did, the last one included."""

    code: str
    first_step: int
    last_step: int


@dataclass(frozen=True)
class Result:
    """result.json: how the run ended. Users' scripts read it, so its keys stay.

    It is written once, as a whole, when the run ends. The trainer's runs have all keys. A run that
    was held or cancelled, or whose ranks are a user's script, has the first five at most.
    """

    status: Literal["completed", "held", "cancelled"]
    reason: str | None = field(default=None, metadata=OMIT_NONE)
    global_step: int | None = field(default=None, metadata=OMIT_NONE)
    attempts: int | None = None
    steps_redone: int | None = None
    epoch: int | None = field(default=None, metadata=OMIT_NONE)
    metrics: tuple[Metric, ...] | None = field(default=None, metadata=AS_OBJECT | OMIT_NONE)
    weights_sha256: str | None = field(default=None, metadata=OMIT_NONE)
    optimizer_sha256: str | None = field(default=None, metadata=OMIT_NONE)
    best: Best | None = field(default=None, metadata={"omit_without": "weights_sha256"})
    exactness: str | None = field(default=None, metadata=OMIT_NONE)
    exactness_reason: str | None = field(default=None, metadata=OMIT_NONE)
    code: tuple[CodeSpan, ...] | None = field(default=None, metadata=OMIT_NONE)

    def metric(self, name: str) -> float | None:
        """The value of a metric; None where the run has none of this name."""
        return next((each.value for each in self.metrics or () if each.name == name), None)


@dataclass(frozen=True)
class Submission:
    """submission.json: the job of the run, and sbatch's command line (None after plain sbatch)."""

    argv: tuple[str, ...] | None = None
    job_id: str | None = None


@dataclass(frozen=True)
class Successor:
    """successor.json: job `job_id` starts after the end of job `after`; `reason`: why."""

    job_id: str
    after: str
    reason: str


@dataclass(frozen=True)
class PartitionNodes:
    """How many nodes a partition has, of whatever state."""

    name: str
    nodes: int


@dataclass(frozen=True)
class SlurmSite:
    """site.json: what the Slurm that a run was submitted to does with the run's jobs.

    A default is Slurm's own. Source: slurm.conf(5).
    """

    cancels_preempted: bool | None = None  # None: not known
    # From the warning of a preemption to SIGKILL; the trainer compares it with its saves.
    preemption_s: int | None = None
    kill_wait_s: int = 30  # from SIGTERM to SIGKILL
    slurmd_port: int = 6818
    partition_nodes: tuple[PartitionNodes, ...] = field(default=(), metadata=AS_OBJECT)
    sites: tuple[str, ...] = ()  # what was shown at submit
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Overrides:
    """overrides.json: the `KEY=VALUE` arguments of submit and of all resumes, in order."""

    arguments: tuple[str, ...]


@dataclass(frozen=True)
class KeyChange:
    """A key of the spec, and its old and new JSON value."""

    key: str
    values: tuple[object, ...]


@dataclass(frozen=True)
class SpecChange:
    """A line of changes.jsonl: a change of the spec that a user confirmed at a resume."""

    time: float  # seconds since the epoch
    changes: tuple[KeyChange, ...] = field(metadata=AS_OBJECT)
    spec_sha256: str = ""  # of the changed spec.json


@dataclass(frozen=True)
class PackageVersion:
    """A Python package and its version; None where it is not installed."""

    name: str
    version: str | None


@dataclass(frozen=True)
class CodeSnapshot:
    """A frozen code of a run: attempts from `attempt` on use it, from the step after `step` on."""

    code: str  # name of the frozen code
    attempt: int
    step: int  # of the checkpoint that the attempt was to continue from; 0: the beginning
    time: float  # seconds since the epoch
    git_sha: str | None = None
    # Of a launch.script outside of the repository: name of the frozen code with its folder.
    script_code: str | None = field(default=None, metadata=OMIT_NONE)
    kit: str | None = field(default=None, metadata=OMIT_NONE)  # where `code` does not have the kit

    @property
    def copies(self) -> tuple[str | None, ...]:
        """The names of the frozen folders."""
        return self.code, self.script_code, self.kit


@dataclass(frozen=True)
class StateOrigin:
    """The checkpoint of another run with which a run began."""

    run_id: str
    run_dir: str
    checkpoint: str
    step: int
    code: str | None = None  # name of the frozen code of that run at the copy


@dataclass(frozen=True)
class Provenance:
    """provenance.json: the code, the interpreter and the packages of a run.

    `code` and the two keys of git describe the newest code; `snapshots` has all, the newest last.
    """

    code: str  # name of the frozen code
    git_sha: str | None
    git_diff: str | None
    python: str
    interpreter: str  # that submitted; it runs the commands of the batch script
    host: str
    versions: tuple[PackageVersion, ...] = field(metadata=AS_OBJECT)
    lock_sha256: str | None = None
    repository: str | None = None  # the checkout that the code was frozen from
    # Of agents and ranks, before it is looked up on a node: agent-NNNNN.json has what was found.
    agent_interpreter: str | None = None
    snapshots: tuple[CodeSnapshot, ...] = ()
    origin: StateOrigin | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True)
class ProvenanceOrigin:
    """The one key of provenance.json that the trainer reads."""

    origin: StateOrigin | None = None


@dataclass(frozen=True)
class Finding:
    """What the check at submit found at a key of the spec.

    key: the way to it, such as ("train", "model").
    frames: the last frames of the user's own files, where their code raised it.
    is_error: every rank would fail; otherwise another host may have what this one lacks.
    """

    key: tuple[str, ...]
    what: str
    hint: str = ""
    frames: tuple[str, ...] = ()
    is_error: bool = True


@dataclass(frozen=True)
class CheckReport:
    """What `trainer.check` writes for submit, into a temporary file."""

    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Claim:
    """owner.json: the job that may write into the run directory, and its attempt."""

    job_id: str
    host: str
    pid: int
    pid_start: str  # clock ticks since boot, of /proc/PID/stat
    attempt: int
    restart_count: int = 0
    token: str = "unnamed"  # names this claim; see jobs.attempt.run_lock


@dataclass(frozen=True)
class OwningAttempt:
    """The keys of owner.json that the trainer compares with its own attempt and job."""

    attempt: int
    job_id: str | None = None


@dataclass(frozen=True)
class NewestCheckpoint:
    """The one key of a line of attempts.jsonl that the trainer reads."""

    checkpoint: str | None = None


@dataclass(frozen=True)
class Progress:
    """progress.json: rank 0's last finished optimizer step, and what a live line shows.

    The trainer writes all keys but `metrics`. A user's kit_stop.py writes step, total and metrics.
    """

    step: int
    total: int | None = None  # optimizer steps of the run
    epoch: int | None = None  # finished epochs
    epochs: int | None = None
    loss: float | None = None
    samples_per_s: float | None = None
    eta_s: float | None = None
    time_left: str | None = None  # eta_s for people
    lr: float | None = None
    # Of the last evaluation, or a user script's own.
    metrics: tuple[Metric, ...] | None = field(default=None, metadata=AS_OBJECT | OMIT_NONE)


@dataclass(frozen=True)
class SavedCheckpoint:
    """saved.json: the step of a user script's newest checkpoint, by its kit_stop.py."""

    step: int


@dataclass(frozen=True)
class FileDigest:
    """The size of a file in bytes, and its SHA-256 in hexadecimal digits."""

    size: int
    sha256: str


@dataclass(frozen=True)
class NamedFile:
    """A file of a checkpoint, by its name in the directory."""

    name: str
    digest: FileDigest


@dataclass(frozen=True)
class StoredCheckpoint:
    """The keys of a checkpoint's manifest.json that the commands read."""

    global_step: int
    files: tuple[NamedFile, ...] = field(metadata=AS_OBJECT)
    best: Best = Best()


@dataclass(frozen=True)
class RankHang:
    """rank-RRRRR.hang.json: what a rank does when it or another rank has found a hang."""

    time: float  # seconds since the epoch
    rank: int
    host: str
    pid: int
    what: str  # the phase of its start-up, or the part of a step
    step: int | None  # None before the first
    where: str  # file, line and function of the main thread's top frame
    is_waiting: bool  # that frame belongs to code that waits for other ranks


@dataclass(frozen=True)
class HangConclusion:
    """hang.json: which ranks did not answer, by the rank that found the hang first."""

    rank: int
    error: str
    unresponsive: tuple[int, ...]


@dataclass(frozen=True)
class Event:
    """A line of timeline/<writer>.jsonl; each event name has fields of its own."""

    t: float  # seconds since the epoch
    event: str
    attempt: int | None
    host: str | None = None
    pid: int | None = None
    step: int | None = None


def read(kind: type[Record], path: Path) -> Record | None:
    """The record in a file; None where there is no such file.

    Raises: RecordError for another content, OSError.
    """
    try:
        value = read_json(path)
    except ValueError as error:
        raise RecordError(f"{path} is not JSON: {error}") from error
    return None if value is None else decode(kind, value, str(path))


def read_leniently(kind: type[Record], path: Path) -> Record | None:
    """The record in a file that a user's script may have written.

    None for a missing file and for what is no such record; a key of a wrong type counts as missing.
    """
    try:
        return decode(kind, read_json(path), str(path), is_lenient=True)
    except ValueError:
        return None


def write(path: Path, record: object) -> None:
    """Replace the file by this record, atomically and durably."""
    write_atomic(path, text(record))


def text(record: object) -> str:
    """The file of this record, as text."""
    return json.dumps(encode(record), indent=2, ensure_ascii=False) + "\n"


def read_lines(kind: type[Record], path: Path) -> list[Record]:
    """The records of a JSON-lines file; a last line that a crash cut off does not count.

    Raises: RecordError, OSError.
    """
    try:
        lines = read_jsonl(path)
    except ValueError as error:
        raise RecordError(f"{path} has a line that is not JSON: {error}") from error
    return [decode(kind, line, f"{path}, line {n}") for n, line in enumerate(lines, 1)]


def append(path: Path, record: object) -> None:
    """Append the record durably, as one line in a single write."""
    append_jsonl(path, encode(record), durable=True)


def read_attempts(run_dir: RunDir) -> list[AttemptRecord]:
    """One record for each closed attempt, in the order in which they were closed.

    attempts.jsonl is append-only: a later line of the same attempt corrects the earlier one.
    """
    folded = {line.attempt: line for line in read_lines(AttemptRecord, run_dir.attempts)}
    return list(folded.values())


def read_agents(run_dir: RunDir, attempt: int) -> list[AgentRecord]:
    """The records that the agents of an attempt have written so far."""
    paths = sorted(run_dir.attempt(attempt).path.glob("agent-*.json"))
    return [record for path in paths if (record := read(AgentRecord, path)) is not None]


def read_events(path: Path) -> list[Event]:
    """The events of a timeline, without the lines that are none.

    An attempt that was cut off may write into the middle of its successor's lines.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    events = []
    for line in lines:
        try:
            events.append(decode(Event, json.loads(line), str(path), is_lenient=True))
        except ValueError:
            continue
    return events


# progress.json is overwritten in place, so each part of it has a fixed place: the step 12 digits
# behind this text, the rest behind the step. JSON allows spaces around both.
_BEFORE_STEP = '{"step": '
PROGRESS_STEP_AT = len(_BEFORE_STEP)
_STEP = re.compile(rb'\{"step": *(\d+)')
_PROGRESS_BYTES = 512


def progress_step_text(step: int) -> str:
    """The step as it stands in progress.json, from offset PROGRESS_STEP_AT on."""
    return f"{step:12d}"


def progress_text(progress: Progress) -> str:
    """The whole text of progress.json, of always the same length."""
    fields = typing.cast(dict[str, object], encode(progress))
    rest = json.dumps({name: fields[name] for name in fields if name != "step"})
    text = f"{_BEFORE_STEP}{progress_step_text(progress.step)}, {rest[1:]}"
    return f"{text:<{_PROGRESS_BYTES - 1}}\n"


def read_progress_step(path: Path) -> int | None:
    """The last finished optimizer step in progress.json; None before the first.

    Only the beginning of the file is read: the rest may be written at the same moment.
    """
    try:
        with open(path, "rb") as file:
            found = _STEP.match(file.read(64))
    except FileNotFoundError:
        return None
    return None if found is None else int(found[1])


def decode(kind: type[Record], value: object, where: str, is_lenient: bool = False) -> Record:
    """The record of a class in a JSON value. `where`: the file, for the error.

    `is_lenient`: a key of a wrong type counts as missing. Raises: RecordError.
    """
    if not isinstance(value, Mapping):
        raise RecordError(f"{where}: expected a JSON object, found {_shown(value)}")
    found = {}
    for each, hint in _hints(typing.cast(type, kind)):
        is_required = (
            each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
        )
        if each.name not in value:
            if is_required:
                raise RecordError(f"{where}: the key {each.name} is missing")
            continue
        item = value[each.name]
        if each.metadata.get("as_object") and isinstance(item, Mapping):
            names = [inner.name for inner in dataclasses.fields(_item_of(hint))]
            item = [dict(zip(names, pair, strict=True)) for pair in item.items()]
        try:
            found[each.name] = _decoded(hint, item, f"{where}: {each.name}")
        except RecordError:
            if is_required or not is_lenient:
                raise
    return kind(**found)


@functools.cache
def _hints(kind: type) -> list[tuple[dataclasses.Field[object], object]]:
    """The fields of a record with their types."""
    hints = typing.get_type_hints(kind)
    return [(each, hints[each.name]) for each in dataclasses.fields(kind)]


def _item_of(hint: object) -> type:
    """The record type X in tuple[X, ...] or tuple[X, ...] | None."""
    options = typing.get_args(hint) if typing.get_origin(hint) is types.UnionType else (hint,)
    item: type = typing.get_args(options[0])[0]
    return item


def _decoded(hint: object, value: object, where: str) -> object:
    """A JSON value as the type of a field. Raises: RecordError."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and types.NoneType in options:
            return None
        (hint,) = (each for each in options if each is not types.NoneType)
        return _decoded(hint, value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_decoded(options[0], item, f"{where}[{n}]") for n, item in enumerate(value))
    if origin is Literal and value in options:
        return value
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return decode(hint, value, where)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        if isinstance(value, str) and value in list(hint):
            return hint(value)
        raise RecordError(f"{where}: expected one of {', '.join(hint)}, found {_shown(value)}")
    if hint is float and type(value) is int:
        return float(value)
    if hint is object or type(value) is hint:  # not isinstance: True is an int
        return value
    raise RecordError(f"{where}: expected {_type_name(hint)}, found {_shown(value)}")


def _type_name(hint: object) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:60]


def encode(value: object) -> object:
    """A record as a JSON value: the fields of a dataclass by name, tuples as lists."""
    if not dataclasses.is_dataclass(value):
        return [encode(item) for item in value] if isinstance(value, tuple) else value
    found = {}
    for each in dataclasses.fields(value):
        item = getattr(value, each.name)
        beside = each.metadata.get("omit_without")
        is_omitted = each.metadata.get("omit_none") or (beside and not getattr(value, beside))
        if item is None and is_omitted:
            continue
        encoded = encode(item)
        if each.metadata.get("as_object") and isinstance(encoded, list):
            encoded = dict(tuple(pair.values()) for pair in encoded)
        found[each.name] = encoded
    return found
