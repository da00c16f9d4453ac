"""What the facts of an attempt say against single nodes; suspects.py says what follows.

If only the node can be to blame, it is left out at once: a failed preflight, broken or missing
GPUs, Slurm's state of it. What the run may have caused is a first reason: a crash or a hang of one
node while the others were well.
Pure functions; their table is tests/plugins/nodes/test_reasons.py.
"""

import re
import signal
from collections.abc import Collection, Iterator, Mapping

from ...base.console import quantity
from ...base.log_text import first_line
from ...base.stop_signals import STOP_SIGNALS
from ...contract.kinds import OF_MEMORY, Kind
from ...contract.known_causes import known_cause
from ...contract.records.ended import LOST, Evidence
from ...contract.records.nodes import RankError
from ...runs.evidence import format_error
from ...runs.facts import AttemptFacts, first_error
from ...runs.results import loaded_step, steps_of
from ...slurm.job_state import has_no_allocation, is_cancelled
from .records import Reason

# The run, or a disk of all nodes. Rank 0 alone writes most files, so it is the first to fail.
OF_THE_RUN = (
    *OF_MEMORY,
    *(Kind.NOT_FINITE, Kind.STOPPED_IN_START_UP, Kind.PERMISSION, Kind.QUOTA, Kind.DISK_FULL),
    *(Kind.DISK_ERROR, Kind.FILES_MISSING, Kind.SPEC_MISTAKE),
)
# Source: scontrol(1), show node. A * behind a state: the node does not respond.
_DOWN = re.compile(r"DOWN|FAIL|NOT_RESPONDING|\*")
_UNFIT = re.compile(rf"DRAIN|{_DOWN.pattern}")
# A frame of a traceback: its file and line.
_FRAME = re.compile(r'^ *File "(.*)", line (\d+)', re.M)
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")


def reasons_of(
    facts: AttemptFacts, evidence: Evidence, states: Mapping[str, str]
) -> tuple[Reason, ...]:
    """Return what speaks against nodes after an attempt, at most one reason for each, by name.

    states: Slurm's State of the nodes; empty where it was not asked or did not answer.
    """
    errors = facts.of_nodes.errors
    own = {error.host for error in errors if not error.caused_by_peer}
    of_hardware = [error for error in errors if error.kind in (Kind.BAD_NODE, Kind.GPU_FAULT)]
    reasons = [Reason(each.host, each.kind, first_line(each.error), True) for each in of_hardware]
    reasons += _of_slurm(evidence, states, own)
    # Slurm may have killed the processes of a job that it ended, one node after the other.
    is_ended = evidence.job_state in ("LOCAL", LOST) or has_no_allocation(evidence.job_state)
    if is_failure(evidence) and not is_ended:
        reasons += _of_gpus(facts)
        if not reasons and evidence.kind not in OF_MEMORY:
            reasons += _of_first_failure(facts)
    by_node = {each.node: each for each in reversed(reasons)}
    return tuple(by_node[node] for node in sorted(by_node))


def _of_slurm(
    evidence: Evidence, states: Mapping[str, str], failed: Collection[str]
) -> Iterator[Reason]:
    """Yield the nodes that are lost, or drained. failed: the hosts of the ranks that failed.

    A site may drain a node for later, which did not end this attempt.
    """
    for node in evidence.unreachable_nodes:
        yield Reason(node, Kind.NODE_FAILURE, "it does not answer", True)
    for node, state in states.items():
        is_planned = "DRAIN" in state and bool(failed) and node not in failed
        if _UNFIT.search(state) and not (is_planned and not _DOWN.search(state)):
            yield Reason(node, Kind.NODE_FAILURE, f"Slurm shows it as {state}", True)


def _of_gpus(facts: AttemptFacts) -> Iterator[Reason]:
    """Yield the nodes with fewer GPUs than the others; too few on all are a mistake in the spec."""
    agents = [agent for agent in facts.of_nodes.agents if agent and agent.gpus is not None]
    most = max((agent.gpus or 0 for agent in agents), default=0)
    for agent in agents:
        if (count := agent.gpus or 0) < most:
            text = f"it has {quantity(count, 'GPU')}, another node {most}"
            yield Reason(agent.host, Kind.BAD_NODE, text, True)


def _of_first_failure(facts: AttemptFacts) -> Iterator[Reason]:
    """Yield the node that crashed or hung while the others were well, if it is a single one."""
    found = facts.of_nodes
    own = [error for error in found.errors if not error.caused_by_peer]
    first = first_error(own)
    if found.hang is not None:
        step = steps_of(facts)[1]
        failure = "" if step is None else f"hang at step {step}"
        reasons = [Reason(host, Kind.HANG, "it hung", False, failure) for host in found.hang.hosts]
    elif first is not None:
        by_host = {error.host: error for error in own} | {first.host: first}
        is_of_run = first.would_repeat or first.kind in OF_THE_RUN
        reasons = [] if is_of_run else [_of_error(facts, error) for error in by_host.values()]
    elif found.agent_errors:  # each begins with the name of its node
        parts = (first_line(error).partition(": ") for error in found.agent_errors)
        reasons = [
            Reason(node, known_cause(text) or Kind.UNKNOWN, text, False, text)
            for node, _, text in parts
        ]
    else:
        hosts = dict.fromkeys(host for _, host in found.gone)
        reasons = [Reason(host, Kind.PROCESS_KILLED, "a rank died there", False) for host in hosts]
    if len(reasons) == 1 and len(facts.nodes) > 1:
        yield reasons[0]


def _of_error(facts: AttemptFacts, error: RankError) -> Reason:
    """Return the reason in the error of a rank; its failure is the error and its place.

    No failure is known of a rank that was killed, or whose collective failed, which happens twice
    in the same words, of different nodes. Numbers are left out: a path may have the time in it.
    """
    code = error.exit_code or 0
    text = next(iter(error.error.strip().splitlines()), "")
    failure = _NUMBER.sub("#", text)
    if places := _FRAME.findall(error.traceback):
        # Not its words: a path in them may have a random name.
        failure = "{} in {} line {}".format(text.partition(":")[0], *places[-1])
    # Of a large job any two nodes crash in the same words now and then, but not from the same step.
    failure += f", from step {loaded_step(facts)}"
    # From outside: its own errors end a process by others, such as SIGSEGV.
    if error.kind is Kind.COLLECTIVE or {-code, code - 128} & {signal.SIGKILL, *STOP_SIGNALS}:
        failure = ""
    if error.kind is Kind.STALE_FILE:  # of a cache of any program, on its way through any code
        failure = error.kind
    return Reason(error.host, error.kind, first_line(format_error(error)), False, failure)


def is_failure(evidence: Evidence) -> bool:
    """Return whether an attempt failed, without a stop from outside."""
    is_ended = evidence.is_requeued or is_cancelled(evidence.job_state, evidence.job_reason)
    return evidence.outcome is None and not evidence.signals and not is_ended
