"""All that a plugin may add to the core of jobs/: fourteen hooks.

`jobs.plugins.PLUGINS` says which plugin has which hook; jobs/plugins/NAME/hooks.py has the
function, with the same name and types. A plugin is imported when one of its hooks is called first.
`decide` may replace a decision. The table of decisions itself, the claim of a run, the commit of a
checkpoint and the agreement of the ranks have no hook. Standard library only.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .base.environment import without
from .base.errors import UserError
from .plugins import PLUGINS, missing

if TYPE_CHECKING:
    from .attempt.decision import Decision, Ending
    from .base.environment import Program
    from .config.loaded import LoadedSpec
    from .config.yaml_reader import Document
    from .contract.problems import Problem
    from .contract.records.ended import AttemptRecord, Evidence
    from .contract.records.nodes import AttemptPlan, Chosen
    from .contract.records.queued import Submission
    from .contract.rundir import RunDir
    from .contract.spec import Spec
    from .runs.facts import AttemptFacts
    from .runs.run_lock import Owner
    from .slurm.job import Job


class Group(Protocol):
    """Runs that a plugin made together, in a folder of their own."""

    @property
    def path(self) -> Path:
        """The real folder."""

    def runs(self) -> list[RunDir]:
        """Return the run directories, in their order."""

    def resume(self, request: Any) -> int:
        """Continue the runs; returns the exit code. request: of the command resume."""


def _plugins_with(hook: str) -> Iterator[Callable[..., Any]]:
    for name, plugin in PLUGINS.items():
        if hook in plugin.hooks:
            yield getattr(importlib.import_module(f".plugins.{name}.hooks", __package__), hook)


def group(text: str) -> Group | None:
    """Return the group of runs that a user means; None where the text names no group."""
    found = (hook(text) for hook in _plugins_with("group"))
    return next((each for each in found if each is not None), None)


def spec_text(words: Sequence[str], command: str) -> str:
    """Return the YAML of a spec for a program that a user typed behind `--` of a command.

    Raises: UserError.
    """
    for hook in _plugins_with("spec_text"):
        return str(hook(words, command))
    raise UserError(f"a command behind -- {missing('scripts')}")


def layers(path: Path, document: Document) -> Document:
    """Return the document of a spec over those of other files; itself where it has none.

    Raises: SpecError.
    """
    for hook in _plugins_with("layers"):
        document = hook(path, document)
    return document


def problems(spec: Spec) -> Iterator[Problem]:
    """Yield what is wrong in a spec, each at its key."""
    for hook in _plugins_with("problems"):
        yield from hook(spec)


def before_queue(runs: Mapping[RunDir, LoadedSpec], is_on_slurm: bool, is_checked: bool) -> None:
    """Check runs before their job is queued, or their agents start; print what is found.

    A dry run has no run directory. is_checked: also what takes seconds.
    Raises: UserError, FailedError for what is sure to fail.
    """
    for hook in _plugins_with("before_queue"):
        hook(runs, is_on_slurm, is_checked)


def prepare_code(spec: Spec, repository: Path) -> tuple[Spec, Path, Sequence[str]]:
    """Return the spec of a new run, the repository to freeze, and the paths in it that stay out.

    Raises: UserError.
    """
    left_out: Sequence[str] = ()
    for hook in _plugins_with("prepare_code"):
        spec, repository, more = hook(spec, repository)
        left_out = [*left_out, *more]
    return spec, repository, left_out


def launch_command(
    program: Program, argv: Sequence[str], environ: Mapping[str, str], spec: Spec | None = None
) -> tuple[list[str], dict[str, str]]:
    """Return command and environment of a program that the kit is about to start for a run.

    A variable that the program must not inherit is not in the environment.
    spec: of the run; None where the program is not started for a run.
    """
    words, variables = [*argv], without(environ, program.value)
    for hook in _plugins_with("launch_command"):
        words, variables = hook(program, words, variables, spec)
    return words, variables


def exclude(
    run_dir: RunDir,
    spec: Spec,
    submission: Submission,
    attempts: Sequence[AttemptRecord],
    listed: Sequence[str],
) -> Sequence[str]:
    """Return the nodes that a job of the run must not get, before it is queued or starts again.

    listed: those that it must not get now.
    """
    for hook in _plugins_with("exclude"):
        listed = hook(run_dir, spec, submission, attempts, listed)
    return listed


def evidence(
    run_dir: RunDir, facts: AttemptFacts, me: Owner, found: Evidence, job: Job | None
) -> Evidence:
    """Return the evidence about an ended attempt with what the plugins know of it.

    job: as Slurm shows it; None where Slurm was not asked, or did not answer.
    """
    for hook in _plugins_with("evidence"):
        found = hook(run_dir, facts, me, found, job)
    return found


def decide(facts: AttemptFacts, ending: Ending, decision: Decision) -> Decision:
    """Return the decision after an attempt, which a plugin may turn into another."""
    for hook in _plugins_with("decide"):
        decision = hook(facts, ending, decision)
    return decision


def choose_nodes(
    run_dir: RunDir, facts: AttemptFacts, me: Owner, nodes: Sequence[str]
) -> Chosen | None:
    """Prepare an attempt, before its plan is written, and choose its nodes.

    facts: of the attempt before. nodes: that the job had at its start. Returns: None where the
    attempt has all of them, in their order.
    Raises: UserError, FailedError for an attempt that must not begin.
    """
    chosen = [hook(run_dir, facts, me, nodes) for hook in _plugins_with("choose_nodes")]
    return next(filter(None, chosen), None)


def successor(
    run_dir: RunDir, facts: AttemptFacts, me: Owner, is_over: bool
) -> tuple[str | None, str]:
    """Return the id of the job that continues the run after this one, or None and the reason.

    is_over: this job cannot start again. Else it opens an attempt; facts: of the one before.
    """
    nothing: tuple[str | None, str] = (None, "")
    return next((hook(run_dir, facts, me, is_over) for hook in _plugins_with("successor")), nothing)


def beside(run_dir: RunDir, plan: AttemptPlan) -> contextlib.ExitStack:
    """Begin what plugins do beside the agents of an attempt; the end of the context ends it."""
    stack = contextlib.ExitStack()
    for hook in _plugins_with("beside"):
        stack.enter_context(hook(run_dir, plan))
    return stack


def end(run_dir: RunDir, facts: AttemptFacts, me: Owner | None) -> None:
    """Note that a run has its result: `facts.result`. me: None where no job of the run did it."""
    for hook in _plugins_with("end"):
        hook(run_dir, facts, me)
