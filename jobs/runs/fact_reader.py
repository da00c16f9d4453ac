"""Reads what the run directory has about a run and its attempts; changes nothing.

A command reads each file once; jobs.runs.evidence and jobs.attempt.decision take values.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatch

from ..base import files
from ..contract import records
from ..contract.checkpoint.names import QUARANTINE_PREFIX, checkpoint_name, checkpoint_names
from ..contract.kinds import Kind
from ..contract.known_causes import ENDED, UNSIGNED
from ..contract.records.ended import read_attempts
from ..contract.records.nodes import AgentRecord, AttemptPlan, HangConclusion, RankError
from ..contract.records.queued import SlurmSite, Submission, Successor
from ..contract.records.timeline import read_events
from ..contract.records.training import Outcome, Progress, Result, SavedCheckpoint
from ..contract.rundir import AttemptDir, RunDir
from . import scratch_purge, silent_end
from .facts import AttemptFacts, NodeFacts, RunFacts, Saved, first_error

RANK_0 = "rank-00000"
_RANK_FILE = re.compile(r"rank-(\d+)\.(log|ended)")
MAX_LOGS = 8  # of torchruns that are read for the reason of a failure


def newest_opened(run_dir: RunDir) -> int:
    """Return the newest attempt's number by its folder's files, which are not read; 0 for none."""
    for number in reversed(attempt_numbers(run_dir)):
        names = files.names_in(run_dir.attempt(number).path)
        if "plan.json" in names or any(fnmatch(name, "agent-*.json") for name in names):
            return number
    return 0


def attempt_numbers(run_dir: RunDir) -> list[int]:
    """Return the numbers of the attempts that have a folder, oldest first."""
    words = (name.partition("-") for name in files.names_in(run_dir.path))
    # A user's copy of such a folder may have any name.
    numbers = {int(number) for word, _, number in words if word == "attempt" and number.isdecimal()}
    return sorted(numbers)


def read_newest(run_dir: RunDir) -> AttemptFacts:
    """Return `read` of the newest attempt that has files. Raises: RecordError, OSError."""
    with files.one_look():
        return read(run_dir, newest_opened(run_dir))


def read(run_dir: RunDir, attempt: int, is_for_next: bool = False) -> AttemptFacts:
    """Return what the run directory has about an attempt. Raises: RecordError, OSError.

    Each file is opened once and each folder listed once: on a busy network file system every such
    operation takes milliseconds.

    is_for_next: for the start of the next attempt. If this one has its record, the files of its
    agents and ranks are not read.
    """
    with files.one_look():
        run, attempt_dir = read_run(run_dir, attempt), run_dir.attempt(attempt)
        is_left_out = is_for_next and any(record.attempt == attempt for record in run.attempts)
        return AttemptFacts(
            **vars(run),
            of_nodes=NodeFacts() if is_left_out else _read_nodes(run_dir, run),
            outcome=records.read_leniently(Outcome, attempt_dir.outcome) or Outcome(),
            site=records.read(SlurmSite, run_dir.site),
        )


def read_run(run_dir: RunDir, attempt: int | None = None) -> RunFacts:
    """Return what the files of a run show beside those of agents and ranks.

    attempt: whose plan is read; None: the newest one. Then two things are left out, because they
    cost time: the plan of a completed run, and damaged checkpoints of a user's script.
    To be called in one look. Raises: RecordError, OSError.
    """
    # First: nothing is asked then about what is missing in it.
    names = files.names_in(run_dir.path)
    result, attempts = records.read(Result, run_dir.result), tuple(read_attempts(run_dir))
    is_given = attempt is not None
    is_sought = is_given or result is None or result.status != "completed"
    if attempt is None:
        recorded = attempts[-1].attempt if attempts else 0
        attempt = max(recorded, newest_opened(run_dir)) if is_sought else recorded
    # Read, not looked for: a client of NFS may show the name for a minute after its deletion.
    mark = files.text_of(run_dir.cancelled, "replace") if run_dir.cancelled.name in names else None
    spec, spec_error = scratch_purge.read_spec(run_dir)
    is_users = not spec.launch.is_trainer
    saved = [] if is_users and not is_given else files.names_in(run_dir.checkpoints)
    return RunFacts(
        spec=spec,
        spec_error=spec_error,
        submission=records.read(Submission, run_dir.submission) or Submission(),
        successor=records.read(Successor, run_dir.successor),
        result=result,
        mark=None if mark is None else mark.strip(),
        progress=records.read_leniently(Progress, run_dir.progress),
        saved=Saved(
            newest_checkpoint(run_dir, is_users),
            tuple(name for name in saved if name.startswith(QUARANTINE_PREFIX)),
        ),
        attempts=attempts,
        attempt=attempt,
        plan=records.read(AttemptPlan, run_dir.attempt(attempt).plan) if is_sought else None,
    )


def newest_checkpoint(run_dir: RunDir, is_users: bool) -> str | None:
    """Return the name of the newest committed checkpoint; None if there is none.

    A user's script (`is_users`) names its files as it likes: the name is made of the step that its
    kit_stop.py has reported as saved.
    """
    if not is_users:
        return next(iter(checkpoint_names(run_dir.checkpoints)), None)
    saved = records.read_leniently(SavedCheckpoint, run_dir.saved)
    return None if saved is None else checkpoint_name(saved.step)


def _read_nodes(run_dir: RunDir, run: RunFacts) -> NodeFacts:
    attempt, launch = run.attempt, run.spec.launch
    attempt_dir = run_dir.attempt(attempt)
    names = files.names_in(attempt_dir.path)
    paths, known = [attempt_dir.path / name for name in names], {*names}
    reasons = (path for path in paths if path.match("agent-*.error"))
    texts = [files.read_text(path, errors="replace").strip() for path in reasons]
    agents = tuple(
        records.read(AgentRecord, path) if path.name in known else None
        for path in map(attempt_dir.agent, range(len(run.nodes)))
    )
    errors = _rank_errors(attempt_dir, names, agents)
    stopped = Kind.STOPPED_IN_START_UP
    is_own = any(not each.caused_by_peer and each.kind is not stopped for each in errors)
    failed = [] if is_own else [(n, x) for n, x in enumerate(agents) if x and x.torchrun_exit]
    failed = sorted(failed, key=lambda pair: pair[1].end or 0.0)[:MAX_LOGS]
    said = [(each, silent_end.torchrun_words(attempt_dir, n)) for n, each in failed]
    # In the log of a killed torchrun a rank speaks that it left, without its files, or its agent.
    words = tuple(
        (each.host, text)
        for each, text in said
        if (text and (each.torchrun_exit or 0) > 0) or text.startswith((ENDED, UNSIGNED))
    )
    if launch.command_prefix and not any(agents) and not errors:
        words = tuple(("", text) for text in silent_end.prefix_words(run_dir.job_log))
    if any(text == UNSIGNED for _, text in words):
        errors = []  # their torchrun ended these ranks
    recorded = [each.rank for each in errors]
    for node_rank, agent in failed:
        errors += silent_end.ended_ranks(attempt_dir, node_rank, agent.host, recorded)
    own = causes(errors, agents, bool(words))
    return NodeFacts(
        agents=agents,
        agent_errors=tuple(filter(None, texts)),  # empty: written on a full disk
        errors=own,
        gone=() if not launch.is_trainer else _gone_ranks(run_dir, attempt, agents, own),
        events=tuple(x for x in read_events(run_dir.timeline(RANK_0)) if x.attempt == attempt),
        is_begun=not known <= {attempt_dir.plan.name, attempt_dir.rendezvous_key.name},
        is_stop_requested=attempt_dir.stop_requested.name in known,
        hang=records.read_leniently(HangConclusion, attempt_dir.hang),
        last_words=() if own else words,
        ends=ends_of(names)[0],
    )


def ends_of(names: Sequence[str]) -> tuple[str, int]:
    """Return which ranks exited with 0, as NodeFacts.ends, and the first one that did not.

    names: of the files of the attempt.
    """
    found = [match.groups() for name in names if (match := _RANK_FILE.fullmatch(name))]
    ended = {rank for rank, what in found if what == "ended"}
    left = next((int(rank) for rank, _ in found if rank not in ended), None)
    if not ended or left is None:
        return "", 0
    return f"rank {int(min(ended))} exited with code 0, and rank {left} did not", left


def causes(
    errors: Sequence[RankError], agents: Sequence[AgentRecord | None], has_torchrun_failed: bool
) -> tuple[RankError, ...]:
    """Return the error records without those of ranks that obeyed their agents' stop in start-up.

    An agent passes on each signal, also that which srun sends after another agent has died: what
    the agents recorded decides what it was. A torchrun that fails by itself sends SIGTERM, too. A
    signal that neither sent was sent to a rank.
    """
    is_passed_on = has_torchrun_failed or any(agent is None or agent.signals for agent in agents)
    stopped = Kind.STOPPED_IN_START_UP
    return tuple(each for each in errors if each.kind is not stopped or not is_passed_on)


def _rank_errors(
    attempt_dir: AttemptDir, names: Sequence[str], agents: Sequence[AgentRecord | None]
) -> list[RankError]:
    """Return what the ranks recorded. Only where no agent has read it, a rank's file is opened."""
    errors = {error.rank: error for agent in agents if agent for error in agent.errors}
    read = {attempt_dir.rank_error(rank).name for rank in errors}
    left = (name for name in names if fnmatch(name, "rank-*.error.json") and name not in read)
    for error in (records.read(RankError, attempt_dir.path / name) for name in left):
        if error is not None:
            errors[error.rank] = error
    return [errors[rank] for rank in sorted(errors)]


def _gone_ranks(
    run_dir: RunDir, attempt: int, agents: Sequence[AgentRecord | None], errors: Sequence[RankError]
) -> tuple[tuple[int, str], ...]:
    """Return (rank, host) of started ranks that left no error; () if a rank's own says why.

    Where an agent recorded no end, the timelines of its ranks are read for it.
    """
    first = first_error(errors)
    if first is None or not first.caused_by_peer:
        return ()
    places = {rank: agent.host for agent in agents if agent for rank in agent.ranks}
    known = {run_dir.timeline(f"rank-{rank:05d}").name for rank in places}
    for path in files.files_in(run_dir.timeline("x").parent, "rank-*.jsonl"):
        of_rank = read_events(path) if path.name not in known else []
        begun = (each for each in of_rank if each.attempt == attempt and each.event == "spawn")
        if (spawn := next(begun, None)) is not None:
            places[int(path.stem.partition("-")[2])] = str(spawn.host)
    recorded = {error.rank for error in errors}
    return tuple(sorted(each for each in places.items() if each[0] not in recorded))
