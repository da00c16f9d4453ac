"""The hooks of the plugin; a run of the trainer passes through them unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...base.console import print_line
from ...base.environment import Program
from ...contract.rundir import RunDir
from ...contract.spec import Spec

if TYPE_CHECKING:
    from ...attempt.decision import Decision, Ending
    from ...config.loaded import LoadedSpec
    from ...contract.problems import Problem
    from ...contract.records.ended import Evidence
    from ...contract.records.nodes import Chosen
    from ...runs.facts import AttemptFacts
    from ...runs.run_lock import Owner
    from ...slurm.job import Job


def problems(spec: Spec) -> Iterator[Problem]:
    from .check import problems_of

    yield from problems_of(spec.launch)


def spec_text(words: Sequence[str], command: str) -> str:
    from . import typed

    return typed.spec_text(words, command)


def prepare_code(spec: Spec, repository: Path) -> tuple[Spec, Path, Sequence[str]]:
    """Return the spec with its script relative to the repository of the script, and that."""
    if spec.launch.is_trainer:
        return spec, repository, ()
    from .code import check_inputs, locate
    from .text import refuse_queuing

    spec, repository = locate(spec, repository)
    check_inputs(spec.launch, repository)
    refuse_queuing(spec.launch, repository)
    return spec, repository, spec.launch.inputs


def before_queue(runs: Mapping[RunDir, LoadedSpec], is_on_slurm: bool, is_checked: bool) -> None:
    """Fill the working directories; name what may go wrong with the script of a new run."""
    scripts = [
        run_dir
        for run_dir, loaded in runs.items()
        if run_dir.path.is_dir() and not loaded.spec.launch.is_trainer
    ]
    for run_dir in scripts[:1]:
        if not (run_dir.work.exists() or run_dir.attempts.exists()):
            from .text import warnings_of

            for line in warnings_of(Spec.read(run_dir.spec), run_dir.code):
                print_line(line)
    for run_dir in scripts:
        from .work import follow_code

        follow_code(run_dir)


def launch_command(
    program: Program, argv: Sequence[str], environ: Mapping[str, str], spec: Spec | None = None
) -> tuple[list[str], dict[str, str]]:
    if program is Program.TORCHRUN and spec is not None and not spec.launch.is_trainer:
        from . import command

        return command.start(argv, environ, spec)
    return [*argv], {**environ}


def choose_nodes(
    run_dir: RunDir, facts: AttemptFacts, me: Owner, nodes: Sequence[str]
) -> Chosen | None:
    if not facts.spec.launch.is_trainer:
        from .work import follow_code

        follow_code(run_dir)
    return None


def evidence(
    run_dir: RunDir, facts: AttemptFacts, me: Owner, found: Evidence, job: Job | None
) -> Evidence:
    if facts.spec.launch.is_trainer:
        return found
    from .progress import with_progress

    return with_progress(run_dir, facts, found)


def decide(facts: AttemptFacts, ending: Ending, decision: Decision) -> Decision:
    """Return the decision, which is a hold of a script that begins again at each start."""
    from . import progress

    return progress.decide(facts, ending, decision)
