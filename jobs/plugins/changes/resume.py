"""The command resume with what may change of a run: its spec, code or checkpoint, its length."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ...commands import arguments, resume
from ...contract import records
from ...contract.checkpoint.names import find_checkpoint
from ...contract.records.frozen import Revision
from ...contract.records.queued import Submission
from ...contract.rundir import RunDir
from ...contract.spec import Spec
from ...runs import fact_reader, frozen_spec, revision, scratch_purge
from ...runs.evidence import is_training_complete
from . import checkpoint_files, code_changes, extension, spec_changes

MAKE = ("", "RUN SET CODE CHECKPOINT YES FLAGS")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_run(parser)
    arguments.add_overrides(parser, "slurm.time=8:0:0")
    arguments.add_start(parser)
    parser.add_argument("--yes", action="store_true", help="also keys on which results depend")
    parser.add_argument("--code", action="store_true", help="freeze the checkout again first")
    parser.add_argument("--checkpoint", metavar="NAME", help="continue from best, step-N or N")
    parser.add_argument("--all-nodes", action="store_true", help="use suspected nodes again")
    arguments.add_no_check(parser)


def command(args: argparse.Namespace) -> int:
    overrides = arguments.overrides_of(args)
    if args.run is not None and "=" in args.run:  # RUN is left out: the newest run
        overrides = [args.run, *overrides]
        args.run = None
    # What the ranks build may differ from what they built before.
    changes_parts = args.code or any(word.startswith("train.") for word in overrides)
    request = resume.Request(
        args.cluster,
        partial(revision_of, overrides=overrides, wanted=args),
        is_changed=bool(overrides or args.code or args.checkpoint),
        is_checked=changes_parts and not args.no_check,
    )
    return resume.resume_named(args.run, request)


def revision_of(run_dir: RunDir, overrides: Sequence[str], wanted: argparse.Namespace) -> Revision:
    """Return how a run changes. wanted: the arguments of the command.

    Raises: UserError for what is refused or needs a confirmation; then nothing was changed.
    """
    resume.check_spec(run_dir)
    was = Spec.read(run_dir.spec)
    loaded = frozen_spec.reload(run_dir, overrides) if overrides else None
    now = was if loaded is None else loaded.spec
    checkpoint = None
    if wanted.checkpoint is not None:
        checkpoint = find_checkpoint(run_dir.checkpoints, wanted.checkpoint)
    saved = checkpoint or fact_reader.newest_checkpoint(run_dir, is_users=not was.launch.is_trainer)
    is_complete = is_training_complete(fact_reader.read_newest(run_dir))
    if is_complete and checkpoint is None:
        extension.check(run_dir, was, now.train)
    change = Revision()
    if wanted.code:
        new_code = code_changes.prepare(run_dir, now, code_changes.repository_of(run_dir))
        # Before the first checkpoint no step is kept that the old code did.
        is_confirmed = wanted.yes or not (saved or any(run_dir.checkpoints.iterdir()))
        code_changes.confirm(run_dir, new_code, is_confirmed)
        change += code_changes.switch(run_dir, new_code)
    else:
        scratch_purge.check_code(run_dir)
    change += resume.uncancel(run_dir)
    if loaded is not None:
        change += spec_changes.change(run_dir, loaded, wanted.yes, saved)
    if wanted.all_nodes:
        queued = records.read(Submission, run_dir.submission) or Submission()
        taken_back = replace(queued, nodes_taken_back=time.time())  # older reports do not count
        change += revision.of_files(run_dir, {run_dir.submission: records.text(taken_back)})
    if is_complete:
        change += extension.reopen(run_dir)
    if checkpoint is not None:
        change += checkpoint_files.go_on_from(run_dir, checkpoint)
    return change
