"""Whether an attempt of a user's script saved something new, where the kit can see it.

Five attempts in a row of which it is seen that they did not are enough, also at time limits.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ... import records, shared_files
from ...attempt.decision import EXTERNAL_STOPS, Budget, Decision
from ...checkpoint.names import checkpoint_step, is_newer
from ...kinds import Kind
from ...records import OMIT_NONE, of_room, with_room
from ...records.ended import ENDS, FINAL, Action, AttemptRecord, Evidence
from ...rundir import RunDir
from ...runs import interpret
from ...runs.interpret import AttemptFacts
from .meeting import NEVER_MET
from .text import may_meet_elsewhere, may_see_stop
from .work import MAX_ASKED, Work, ask_for_all, record_of

ROOM = "scripts"
CHECKPOINTS = (".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".pkl", ".npz", ".tar", ".distcp")


@dataclass(frozen=True)
class Seen:
    """Kept in the evidence of an attempt.

    nothing_new: what shows that it saved nothing new. apart: the number of its ranks, where they
    opened no common process group.
    """

    nothing_new: str | None = field(default=None, metadata=OMIT_NONE)
    apart: int | None = field(default=None, metadata=OMIT_NONE)


def seen_in(evidence: Evidence) -> Seen:
    """Return what the room keeps in the evidence of an attempt."""
    return of_room(Seen, evidence.rooms, ROOM) or Seen()


def with_progress(run_dir: RunDir, facts: AttemptFacts, found: Evidence) -> Evidence:
    """Return the evidence with what is seen of the progress of a script, and of its end."""
    if has_finished(run_dir, facts, found):
        found = replace(found, outcome="completed")
    has_progress, why = progress_of(run_dir, facts)
    ranks = sum(len(agent.ranks) for agent in facts.of_nodes.known_agents)
    is_apart = shared_files.exists(run_dir.attempt(facts.attempt).path / NEVER_MET)
    is_apart = is_apart and not may_meet_elsewhere(facts.spec.launch, run_dir.code)
    seen = Seen(why, ranks if is_apart else None)
    rooms = found.rooms if seen == Seen() else with_room(found.rooms, ROOM, seen)
    return replace(found, has_progress=has_progress, rooms=rooms)


def has_finished(run_dir: RunDir, facts: AttemptFacts, found: Evidence) -> bool:
    """Return whether a script without kit_stop.py finished by itself after a Ctrl-C.

    It got no signal, and does not look for the stop. On Slurm a signal may have reached it.
    """
    launch = facts.spec.launch
    if found.outcome != "stopped" or found.job_state != "LOCAL" or launch.stop_signal != "none":
        return False
    is_done = interpret.is_by_exit_code(facts) and interpret.unfinished_steps(facts) is None
    return is_done and not may_see_stop(launch, run_dir.code)


def progress_of(run_dir: RunDir, facts: AttemptFacts) -> tuple[bool, str | None]:
    """Return whether the attempt saved something new, and what shows that it did not.

    That is a later saved step than all before, or, of a script that reports none, a newer file. A
    script that begins again writes newer files, too: its steps show it, or the job in their names.
    """
    saved, begun = facts.saved.checkpoint, records.read(Work, record_of(run_dir))
    before = [each.checkpoint for each in (facts.plan, *facts.attempts) if each is not None]
    newest = newest_file(run_dir)
    is_new = (newest or "") > ((begun and begun.newest_file) or "")
    if saved is not None:
        is_new = all(is_newer(saved, each) for each in before)
    first, last = interpret.steps_of(facts)
    steps = ((each.first_step, each.last_step) for each in _since_resume(facts))
    earlier = [(begin, end) for begin, end in steps if begin is not None and end is not None]
    if first is not None and last is not None and earlier and not _goes_back(facts):
        if first > earlier[0][0]:
            # Where no save is seen: the attempt before has saved what this one began with.
            return is_new or (saved is None and newest is None), None
        # One report may be that of an epoch, which takes longer than an attempt.
        ends = [end for _, end in earlier]
        if first < last and (not is_new or (saved is None and last <= max(ends))):
            return False, f"each start begins at step {first - 1}"
    elif path := _named_by_job(run_dir, facts):
        return False, f"each start begins at step 0: {path} has the id of the job in its name"
    if saved is not None and not is_new:
        highest = max(checkpoint_step(each) or 0 for each in before if each is not None)
        return False, f"no step above {highest} was saved"
    return is_new, None


def _goes_back(facts: AttemptFacts) -> bool:
    """Return whether the steps went back within the attempt: they count those of an epoch."""
    return [each.event for each in facts.of_nodes.events].count("first_step") > 1


def _since_resume(facts: AttemptFacts) -> Iterator[AttemptRecord]:
    """Yield the closed attempts that no hold or cancel separates from this one, newest first."""
    for entry in reversed(facts.attempts):
        if entry.decision in ENDS:
            return
        yield entry


def _named_by_job(run_dir: RunDir, facts: AttemptFacts) -> str | None:
    """Return the file of a checkpoint that the job before has under the same name but for its id.

    None where a checkpoint without the id in its path is as new, or where that of the job before
    was read after it was written. Logs may have the id.
    """
    before, now = (each and each.job_id for each in (facts.last, facts.plan))
    if not before or not now or before == now:
        return None
    files: dict[str, os.stat_result] = {}
    for top in (run_dir.work, run_dir.checkpoints):
        for folder, _, names in os.walk(top):
            for path in (Path(folder, name) for name in names if name.endswith(CHECKPOINTS)):
                with contextlib.suppress(OSError):
                    files[str(path.relative_to(run_dir.path))] = path.stat()
            if len(files) > MAX_ASKED:
                return None
    of_job = re.compile(rf"(?<!\d){re.escape(now)}(?!\d)")
    ours = sorted(filter(of_job.search, files))
    others = max([0.0, *(files[path].st_mtime for path in files.keys() - ours)])
    before_ours = {path: files.get(of_job.sub(before, path)) for path in ours}
    old = {path: stat for path, stat in before_ours.items() if stat is not None}
    is_read = any(stat.st_atime_ns > stat.st_mtime_ns for stat in old.values())
    if not old or is_read or others >= min(files[path].st_mtime for path in ours):
        return None
    return min(old)


def decide(facts: AttemptFacts, found: Evidence, decision: Decision) -> Decision:
    """Return the decision, or a hold after as many attempts in a row that saved nothing new.

    That of a complete run says if its ranks did not meet.
    """
    seen = seen_in(found)
    if decision.action is Action.DONE and seen.apart:
        reason = f"{seen.apart} separate trainings: no rank called torch's init_process_group()"
        return replace(decision, reason=reason, kind=Kind.SEPARATE_TRAININGS)
    if seen.nothing_new is None:
        return decision
    if decision.action is Action.HOLD and decision.budget is Kind.MAX_CRASHES:
        return replace(decision, reason=f"{decision.reason}; {seen.nothing_new}")
    if decision.action in FINAL or decision.cause in EXTERNAL_STOPS:
        return decision
    attempts = 1
    for entry in _since_resume(facts):
        if entry.cause not in EXTERNAL_STOPS:
            if seen_in(entry.evidence).nothing_new is None:
                break
            attempts += 1
    if attempts < (Budget.attempts or 0):
        return decision
    why = f"{attempts} attempts without progress: {seen.nothing_new}"
    reason = f"{why}; the last one: {decision.reason}"
    return Decision(Action.HOLD, decision.cause, reason, Kind.NO_PROGRESS)


def note_begin(run_dir: RunDir) -> None:
    """Keep which file is the newest now, before the next attempt begins."""
    known = records.read(Work, record_of(run_dir)) or Work()
    records.write(record_of(run_dir), replace(known, newest_file=newest_file(run_dir)))


def newest_file(run_dir: RunDir) -> str | None:
    """Return time (ns) and path of the file in the folder of checkpoints that changed last.

    The times have a fixed width: the greater of two such strings is that of the newer file.
    """
    times = []
    with contextlib.suppress(OSError):
        ask_for_all(run_dir.checkpoints)  # a script overwrites last.ckpt in place
    for folder, _, names in os.walk(run_dir.checkpoints):
        for path in (Path(folder, name) for name in names):
            with contextlib.suppress(OSError):  # the script replaces it right now
                times.append((path.stat().st_mtime_ns, path.relative_to(run_dir.path)))
    return "{:020d} {}".format(*max(times)) if times else None
