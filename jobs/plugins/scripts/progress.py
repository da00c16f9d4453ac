"""Whether an attempt of a user's script saved something new, where the kit can see it."""

import contextlib
import itertools
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from ...attempt.decision import Decision, Ending, history_of, is_restart
from ...base import files
from ...contract.checkpoint.names import is_newer
from ...contract.kinds import Kind
from ...contract.records import of_plugin
from ...contract.records.ended import ENDS, FINAL, Action, Evidence
from ...contract.rundir import RunDir
from ...runs.evidence import exits_are_clean
from ...runs.facts import AttemptFacts
from .code import texts_of
from .meeting import NEVER_MET
from .work import ask_for_all

PLUGIN = "scripts"
# Of a run of which no attempt shows progress, unless slurm.max_restarts is set.
MAX_RESTARTS = 20
# Where ranks may meet that open no process group of torch.
_ELSEWHERE = re.compile(r"file://|FileStore|mpi4py|horovod|jax\.distributed")


@dataclass(frozen=True)
class Seen:
    """Kept in the evidence of an attempt whose `apart` ranks opened no common process group."""

    apart: int


def with_progress(run_dir: RunDir, facts: AttemptFacts, found: Evidence) -> Evidence:
    """Return the evidence with what is seen of the progress of a script."""
    ranks = sum(len(agent.ranks) for agent in facts.of_nodes.known_agents)
    is_apart = files.exists(run_dir.attempt(facts.attempt).path / NEVER_MET)
    texts = texts_of(facts.spec.launch, run_dir.code).values() if is_apart else ()
    is_apart = is_apart and not any(map(_ELSEWHERE.search, texts))
    plugins = {**found.plugins, PLUGIN: Seen(ranks)} if is_apart else found.plugins
    return replace(found, has_progress=has_progress(run_dir, facts), plugins=plugins)


def has_progress(run_dir: RunDir, facts: AttemptFacts) -> bool:
    """Return whether the attempt saved a later step than all before.

    A script that reports no saved step has progress where a file in the folder of checkpoints is
    newer.
    """
    if (saved := facts.saved.checkpoint) is not None:
        before = [each.checkpoint for each in (facts.plan, *facts.attempts) if each is not None]
        return all(is_newer(saved, each) for each in before)
    begun = _time_of(run_dir.attempt(facts.attempt).plan)  # by the clock of the same disk
    return begun is not None and newest_file(run_dir) > begun


def decide(facts: AttemptFacts, ending: Ending, decision: Decision) -> Decision:
    """Return the decision, or a hold after MAX_RESTARTS starts of which none shows progress.

    That of a complete run says how the kit knows it, and if its ranks did not meet.
    """
    seen = of_plugin(Seen, ending.evidence.plugins, PLUGIN)
    if decision.action is Action.DONE and seen is not None:
        reason = f"{seen.apart} separate trainings: no rank called torch's init_process_group()"
        return replace(decision, reason=reason, kind=Kind.SEPARATE_TRAININGS)
    if decision.action is Action.DONE and exits_are_clean(facts) and facts.outcome.status is None:
        return replace(decision, reason="every rank exited with code 0")
    spec, restarts = facts.spec, history_of(facts.attempts).restarts
    is_bounded = not spec.launch.is_trainer and spec.slurm.max_restarts is None
    is_counted = decision.action not in FINAL and is_restart(decision.action, decision.cause)
    if not is_bounded or not is_counted or restarts < MAX_RESTARTS:
        return decision
    since = itertools.takewhile(lambda each: each.decision not in ENDS, reversed(facts.attempts))
    if ending.evidence.has_progress or any(each.evidence.has_progress for each in since):
        return decision
    reason = (
        f"{restarts} restarts, and the kit sees no progress (no step saved by kit_stop.py, no file "
        f"in KIT_CHECKPOINT_DIR); the last one: {decision.reason}"
    )
    return replace(decision, action=Action.HOLD, reason=reason, budget=Kind.MAX_RESTARTS)


def newest_file(run_dir: RunDir) -> int:
    """Return when the folder of checkpoints last got a new file or content, in ns; 0: never."""
    with contextlib.suppress(OSError):
        ask_for_all(run_dir.checkpoints)  # a script overwrites last.ckpt in place
    paths = (Path(top, name) for top, _, names in os.walk(run_dir.checkpoints) for name in names)
    return max((time for path in paths if (time := _time_of(path)) is not None), default=0)


def _time_of(path: Path) -> int | None:
    with contextlib.suppress(OSError):  # the script replaces it right now
        return path.stat().st_mtime_ns
    return None
