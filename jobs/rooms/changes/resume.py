"""The command resume with what may change of a run: its spec, code or checkpoint, its length."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ... import installation, records
from ...commands import arguments, resume
from ...console import print_line
from ...errors import UserError
from ...records.frozen import Revision
from ...records.queued import Submission
from ...rundir import RunDir
from ...runs import checkpoint_lookup, frozen_spec, revision, scratch_purge
from ...spec import Spec
from . import checkpoint_files, code_changes, extension, spec_changes

MAKE = ("", "RUN SET CODE CHECKPOINT YES FLAGS")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of resume, and those that change a run."""
    arguments.add_run(parser)
    arguments.add_overrides(parser, "slurm.time=8:0:0")
    arguments.add_start(parser)
    help_of_yes = "also keys on which results depend"
    parser.add_argument("--yes", action="store_true", help=help_of_yes)
    parser.add_argument("--code", action="store_true", help="freeze the checkout again first")
    parser.add_argument("--checkpoint", metavar="NAME", help="continue from best, step-N or N")
    parser.add_argument("--all-nodes", action="store_true", help="use suspected nodes again")
    arguments.add_no_check(parser)


def command(args: argparse.Namespace) -> int:
    """Run resume; returns the exit code."""
    overrides = arguments.overrides_of(args)
    if args.run is not None and "=" in args.run:  # RUN is left out: the newest run
        overrides = [args.run, *overrides]
        args.run = None
    request = ChangeRequest(
        *(args.cluster, args.yes, overrides, args.code, args.checkpoint),
        wants_check=not args.no_check,
        takes_all_nodes=args.all_nodes,
    )
    return resume.resume_named(args.run, request, args.json)


@dataclass(frozen=True)
class ChangeRequest(resume.Request):
    """What a user asks of a resume, and what shall change before.

    is_confirmed: also if results may change. has_new_code: freeze the checkout anew. checkpoint:
    the one to go on from, as the user names it; None: the newest. wants_check: on Slurm, build the
    parts of the run once before it is queued if the code or the training changes. takes_all_nodes:
    also those that were left out.
    """

    is_confirmed: bool = False
    overrides: Sequence[str] = ()
    has_new_code: bool = False
    checkpoint: str | None = None
    wants_check: bool = True
    takes_all_nodes: bool = False

    @property
    def is_checked(self) -> bool:
        """Whether what the ranks build may differ from what they built before, and is checked."""
        changes_parts = any(word.startswith("train.") for word in self.overrides)
        return self.wants_check and (self.has_new_code or changes_parts)

    def has_more_steps(self, run_dir: RunDir) -> bool:
        """Return whether a complete run gets further steps; print how it would, if not.

        Raises: UserError if the user wanted to change it.
        """
        is_changed = bool(self.overrides) or self.checkpoint is not None
        is_script = is_foreign(run_dir)
        if is_changed and not is_script:
            return True
        complete = f"{run_dir.run_id} is already complete"
        how = "submit a new run"
        if not is_script:
            how = installation.command("resume", run_dir.run_id, "train.epochs=...", "yes")
        if is_changed or self.has_new_code:
            raise UserError(f"{complete}, so nothing is changed\n  hint: to train on, {how}")
        print(f"{complete}; to train on, {how}")
        return False

    def revision_of(self, run_dir: RunDir, is_complete: bool) -> Revision:
        """Return how the request changes a run.

        Raises: UserError for what is refused or needs a confirmation; then nothing was changed.
        """
        resume.check_spec(run_dir)
        checkpoint = chosen_checkpoint(run_dir, self.checkpoint)
        new_code = fresh_code(run_dir, self) if self.has_new_code else None
        if new_code is None:
            scratch_purge.check_code(run_dir)
        if is_complete and checkpoint is None:
            now = frozen_spec.reload(run_dir, self.overrides).spec
            extension.check(run_dir, Spec.read(run_dir.spec).train, now.train)
        change = resume.uncancel(run_dir)
        if self.overrides:
            newest = checkpoint or checkpoint_lookup.newest(run_dir, is_users=False)
            change += spec_changes.change(run_dir, self.overrides, self.is_confirmed, newest)
        if self.takes_all_nodes:
            queued = records.read(Submission, run_dir.submission) or Submission()
            taken_back = replace(queued, nodes_taken_back=time.time())  # older reports do not count
            change += revision.of_files(run_dir, {run_dir.submission: records.text(taken_back)})
        if is_complete:
            change += extension.reopen(run_dir)
        if new_code is not None:
            change += code_changes.switch(run_dir, new_code)
        if checkpoint is not None:
            aside = checkpoint_files.newer_than(run_dir, checkpoint)
            change += checkpoint_files.go_on_from(run_dir, checkpoint)
            print_line(f"continuing from {checkpoint}; put aside: {', '.join(aside) or 'none'}")
        return change


def is_foreign(run_dir: RunDir) -> bool:
    """Return whether ranks run a user's script, not the kit's trainer; False without spec.json."""
    return not scratch_purge.read_spec(run_dir)[0].launch.is_trainer


def chosen_checkpoint(run_dir: RunDir, text: str | None) -> str | None:
    """Return the name of the checkpoint that the user chose, if any. Raises: UserError."""
    if text is None:
        return None
    if is_foreign(run_dir):
        raise UserError(
            f"--checkpoint {text}: the ranks are your own script, which chooses its file itself"
        )
    return checkpoint_files.find(run_dir.checkpoints, text)


def fresh_code(run_dir: RunDir, request: ChangeRequest) -> code_changes.NewCode:
    """Return a checkout copy for the run. Raises: UserError for differences without a --yes."""
    spec = Spec.read(run_dir.spec)
    if request.overrides:
        spec = frozen_spec.reload(run_dir, request.overrides).spec
    new_code = code_changes.prepare(run_dir, spec, code_changes.repository_of(run_dir))
    # Before the first checkpoint no step is kept that the old code did.
    is_users = is_foreign(run_dir)
    saved = checkpoint_lookup.newest(run_dir, is_users)
    has_files = is_users and any(run_dir.checkpoints.iterdir())
    is_confirmed = request.is_confirmed or not (saved or has_files)
    print_line("\n".join(code_changes.confirm(run_dir, new_code, is_confirmed)))
    return new_code
