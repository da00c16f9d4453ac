"""The command resume: continue a run that was held, cancelled, interrupted or lost, or a group.

Also with mended code, from an older checkpoint, and a complete run with more steps.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from .. import hooks, installation, records
from ..attempt import record_writer
from ..attempt.close import write_missing_result
from ..checkpoint.names import find_checkpoint
from ..config.load import LoadedSpec
from ..console import print_line
from ..errors import FailedError, UserError
from ..records.frozen import Revision
from ..records.queued import Submission
from ..rundir import RunDir
from ..runs import (
    checkpoint_files,
    checkpoint_lookup,
    code_changes,
    extension,
    fact_reader,
    lookup,
    revision,
    run_lock,
    scratch_purge,
    spec_changes,
    state,
)
from ..runs.state import RunState
from ..slurm import job_list
from ..spec import Spec
from . import arguments, catalogue, local, run_jobs
from .queue import gpu_hours, queue
from .submit import choose_cluster, go_on
from .submit_claim import hold_claim

ENDING_WAIT_S = 30.0
MAKE = ("", "RUN SET CODE CHECKPOINT YES FLAGS")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of resume."""
    arguments.add_run(parser)
    arguments.add_overrides(parser, "slurm.time=8:0:0")
    arguments.add_start(parser)
    help_of_yes = "change what results depend on, too"
    parser.add_argument("--yes", action="store_true", help=help_of_yes)
    parser.add_argument("--code", action="store_true", help="freeze the checkout anew first")
    parser.add_argument("--checkpoint", metavar="NAME", help="go on from best, step-N or N")
    parser.add_argument(
        "--all-nodes", action="store_true", help="use nodes again that were left out as suspects"
    )
    arguments.add_no_check(parser)


def command(args: argparse.Namespace) -> int:
    """Run resume; returns the exit code."""
    overrides = arguments.overrides_of(args)
    if args.run is not None and "=" in args.run:  # RUN is left out: the newest run
        overrides = [args.run, *overrides]
        args.run = None
    request = Request(
        *(overrides, args.cluster, args.yes, args.code, args.checkpoint),
        is_checked=not args.no_check,
        takes_all_nodes=args.all_nodes,
    )
    if (group := lookup.find_group(args.run)) is not None:
        return catalogue.maker_of(group).resume_all(group, request, args.json)
    return resume(lookup.find(args.run), request, args.json)


@dataclass(frozen=True)
class Request:
    """What a user asks of a resume.

    is_confirmed: results may change.
    has_new_code: freeze the checkout anew. checkpoint: the one to go on from, as the user names it;
    None: the newest. is_checked: on Slurm, build the parts of the run once before it is queued if
    the code or the training changes. takes_all_nodes: also those that were left out.
    """

    overrides: Sequence[str] = ()
    cluster: str = "auto"
    is_confirmed: bool = False
    has_new_code: bool = False
    checkpoint: str | None = None
    is_checked: bool = True
    takes_all_nodes: bool = False

    @property
    def changes_parts(self) -> bool:
        """Whether what the ranks build may differ from what they built before."""
        return self.has_new_code or any(word.startswith("train.") for word in self.overrides)


def resume(run_dir: RunDir, request: Request, as_json: bool) -> int:
    """Continue a run, perhaps with another spec, code or checkpoint; returns the exit code.

    Raises: UserError, FailedError; then the run is as it was, with no new job.
    """
    write_missing_result(state.read(run_dir))
    if is_done(run_dir, request):
        return nothing_to_resume(run_dir, request)
    cluster = choose_cluster(request.cluster)
    with hold_claim(run_dir):
        refuse_living(run_dir, cluster)
        revision.complete(run_dir)
        if is_done(run_dir, request):  # its job has ended since
            return nothing_to_resume(run_dir, request)
        job_id = None
        with changed_runs([run_dir], request, cluster, fact_reader.is_complete(run_dir)) as runs:
            if cluster == "slurm":
                before = records.read(Submission, run_dir.submission) or Submission()
                job_id = queue(runs[run_dir].spec, run_dir, before)
            else:  # under the claim: another resume must not change the run meanwhile
                me = run_lock.this_process(None)
                run_lock.claim(run_dir, me, fact_reader.newest_opened(run_dir) + 1)
    return go_on(run_dir, job_id, as_json)


def is_done(run_dir: RunDir, request: Request) -> bool:
    """Return whether a run is complete, and the request gives it no further steps."""
    if not fact_reader.is_complete(run_dir):
        return False
    return checkpoint_lookup.is_foreign(run_dir) or not has_more_to_do(request)


def has_more_to_do(request: Request) -> bool:
    """Return whether a complete run may get further steps by this request."""
    return bool(request.overrides) or request.checkpoint is not None


@contextlib.contextmanager
def changed_runs(
    run_dirs: Sequence[RunDir], request: Request, cluster: str, is_complete: bool = False
) -> Iterator[dict[RunDir, LoadedSpec]]:
    """Run a block in which runs are as the request wants them and can be queued, or can run here.

    If it fails, the runs are as they were.
    Raises: FailedError; LocalError for a spec that this machine cannot run; UserError for what is
    refused or needs a confirmation; SpecError for parts that every rank would fail of.
    """
    with revision.changed({each: revision_of(each, request, is_complete) for each in run_dirs}):
        # Without the user's file: a mistake is in the code, or in a key of this command.
        runs = {run_dir: LoadedSpec(Spec.read(run_dir.spec), "") for run_dir in run_dirs}
        specs = [loaded.spec for loaded in runs.values()]
        if cluster == "local":
            local.check_machine(specs[0], len(local.visible_gpus()))
        else:
            print_line(gpu_hours(specs))
        is_checked = request.is_checked and request.changes_parts
        hooks.before_queue(runs, cluster == "slurm", is_checked)
        yield runs


def revision_of(run_dir: RunDir, request: Request, is_complete: bool) -> Revision:
    """Return how a request changes a run: at least, the run is not cancelled any more.

    Raises: UserError for what is refused or needs a confirmation; then nothing was changed.
    """
    revision.complete(run_dir)
    if (error := scratch_purge.read_spec(run_dir)[1]) is not None:
        raise error
    checkpoint = chosen_checkpoint(run_dir, request.checkpoint)
    new_code = fresh_code(run_dir, request) if request.has_new_code else None
    if new_code is None:
        scratch_purge.check_code(run_dir)
    if is_complete and checkpoint is None:
        now = spec_changes.reload(run_dir, request.overrides).spec
        extension.check(run_dir, Spec.read(run_dir.spec).train, now.train)
    spec_changes.mend_setup(run_dir)
    change = revision.of_files(run_dir, {run_dir.cancelled: None})
    if request.overrides:
        change += spec_changes.change(run_dir, request.overrides, request.is_confirmed)
    if request.takes_all_nodes:
        queued = records.read(Submission, run_dir.submission) or Submission()
        taken_back = replace(queued, nodes_taken_back=time.time())  # older reports do not count
        change += revision.of_files(run_dir, {run_dir.submission: records.text(taken_back)})
    if is_complete:
        change += record_writer.reopen(run_dir, fact_reader.read_newest(run_dir))
    if new_code is not None:
        change += code_changes.switch(run_dir, new_code)
    if checkpoint is not None:
        aside = checkpoint_files.newer_than(run_dir, checkpoint)
        change += checkpoint_files.go_on_from(run_dir, checkpoint)
        print_line(f"going on from {checkpoint}; put aside: {', '.join(aside) or 'none'}")
    return change


def chosen_checkpoint(run_dir: RunDir, text: str | None) -> str | None:
    """Return the name of the checkpoint that the user chose, if any. Raises: UserError."""
    if text is None:
        return None
    if checkpoint_lookup.is_foreign(run_dir):
        raise UserError(
            f"--checkpoint {text}: the ranks are your own script, which chooses its file itself"
        )
    return find_checkpoint(run_dir.checkpoints, text)


def fresh_code(run_dir: RunDir, request: Request) -> code_changes.NewCode:
    """Return a checkout copy for the run. Raises: UserError for differences without a --yes."""
    spec = Spec.read(run_dir.spec)
    if request.overrides:
        spec = spec_changes.reload(run_dir, request.overrides).spec
    new_code = code_changes.prepare(run_dir, spec, code_changes.repository_of(run_dir))
    # Before the first checkpoint no step is kept that the old code did.
    is_users = checkpoint_lookup.is_foreign(run_dir)
    saved = checkpoint_lookup.newest(run_dir, is_users)
    has_files = is_users and any(run_dir.checkpoints.iterdir())
    is_confirmed = request.is_confirmed or not (saved or has_files)
    print_line("\n".join(code_changes.confirm(run_dir, new_code, is_confirmed)))
    return new_code


def refuse_living(run_dir: RunDir, cluster: str) -> None:
    """Raises: UserError for a run that is queued or runs; FailedError if Slurm does not answer."""
    run = ended_state(run_dir)
    for job_id, life in run.lives.items():
        if life.is_alive:
            which = f"queued as job {job_id}, which continues it"
            what = which if job_id == run.files.successor else f"queued or running as job {job_id}"
            raise UserError(f"{run_dir.run_id} is {what}")
        if life.is_alive is None and (cluster == "slurm" or not life.is_silent):
            raise state.unknown(run_dir, life)
    queued = run_jobs.in_queue([run_dir])
    if queued is None and cluster == "slurm":
        text = f"{run_dir.run_id}: squeue does not answer whether a job of it is queued already"
        raise FailedError(f"{text}\n  hint: try again")
    if queued:
        raise UserError(
            f"{run_dir.run_id} is queued or running as job {next(iter(queued[run_dir]))}"
        )
    if run.process is not None and run.life is not None:
        if run.life.is_alive:
            raise UserError(f"{run_dir.run_id} is running as {run.process.job_id}")
        hint = f"{run.life.hint}; if it has ended, delete {run_dir.owner}"
        raise state.unknown(run_dir, replace(run.life, hint=hint))


def ended_state(run_dir: RunDir) -> RunState:
    """Return the state of a run, read again where its last job only ends.

    A job that has ended the run lives a few seconds more, at most ENDING_WAIT_S: the user has seen
    already that the run is held.
    """
    run = state.read(run_dir, is_for_change=True)
    job = run.files.submitted
    if job is None or not run.is_ending:
        return run
    deadline = time.monotonic() + ENDING_WAIT_S
    while job_list.life_of(job).is_alive and time.monotonic() < deadline:
        time.sleep(0.5)
    return state.read(run_dir, is_for_change=True)


def nothing_to_resume(run_dir: RunDir, request: Request) -> int:
    """Print that a run is complete and how to train on; returns 0.

    Raises: UserError if the user wanted to change it.
    """
    complete = f"{run_dir.run_id} is complete, there is nothing to resume"
    how = "submit a new run"
    if not checkpoint_lookup.is_foreign(run_dir):
        how = installation.command("resume", run_dir.run_id, "train.epochs=...", "yes")
    if has_more_to_do(request) or request.has_new_code:
        raise UserError(f"{complete}, so nothing is changed\n  hint: to train on, {how}")
    print(f"{complete}; to train on, {how}")
    return 0
