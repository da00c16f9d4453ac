"""The hooks of the plugin: the job that waits to continue a run, and what preemption does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...base.console import print_line
from ...config.loaded import LoadedSpec
from ...contract.rundir import RunDir
from . import preemption

if TYPE_CHECKING:  # the commands that queue a job need no more than the above
    from ...attempt.decision import Decision, Ending
    from ...config.yaml_reader import Document
    from ...contract.records.ended import Evidence
    from ...contract.records.nodes import Chosen
    from ...runs.facts import AttemptFacts
    from ...runs.run_lock import Owner
    from ...slurm.job import Job


def layers(path: Path, document: Document) -> Document:
    from .layers import layered  # PyYAML

    return layered(path, document)


def before_queue(runs: Mapping[RunDir, LoadedSpec], is_on_slurm: bool, is_checked: bool) -> None:
    """Record in each run directory what preemption does here; print a note where it cancels jobs.

    The runs of a sweep ask Slurm for the same.
    """
    if not is_on_slurm:
        return
    first, loaded = next(iter(runs.items()))
    slurm = loaded.spec.slurm
    sites = preemption.query(slurm)
    if first.path.is_dir():  # not in a dry run
        for run_dir in runs:
            preemption.record(run_dir, sites)
    for site in sites if slurm.restart != "successor" else ():
        if site.preempt_mode == "CANCEL":
            print_line(
                f"note: slurm.restart: {site.name} cancels what it preempts (PreemptMode=CANCEL); "
                "by auto a successor job waits for the end of the job and continues the run"
            )


def evidence(
    run_dir: RunDir, facts: AttemptFacts, me: Owner, found: Evidence, job: Job | None
) -> Evidence:
    from .after_end import seen

    return found if job is None else seen(facts, found, job, me.job_id)


def decide(facts: AttemptFacts, ending: Ending, decision: Decision) -> Decision:
    from . import after_end

    return after_end.decide(facts, ending, decision)


def choose_nodes(
    run_dir: RunDir, facts: AttemptFacts, me: Owner, nodes: Sequence[str]
) -> Chosen | None:
    """Check that a successor job may continue the run. Raises: FailedError."""
    from ...runs import lookup
    from .predecessor import check

    if (before := lookup.predecessor(run_dir)) is not None:
        check(run_dir, facts, me, before)
    return None


def successor(
    run_dir: RunDir, facts: AttemptFacts, me: Owner, is_over: bool
) -> tuple[str | None, str]:
    """Return the id of the job that continues the run after this one, or None and the reason."""
    from .successor import confirm, ensure

    if is_over:
        return confirm(run_dir, facts, me.job_id)
    return ensure(run_dir, facts, me.job_id)


def end(run_dir: RunDir, facts: AttemptFacts, me: Owner | None) -> None:
    """Cancel the job's successor: there is nothing left to continue."""
    from ...slurm.job import run_scancel
    from .successor import waiting

    if me is not None and (after := waiting(facts, me.job_id)) is not None:
        run_scancel(after)
        run_dir.successor.unlink(missing_ok=True)
