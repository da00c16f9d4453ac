"""The command resume: continue a run that was held, cancelled, interrupted or lost, or a group.

It continues a run as it is. The plugin changes lets a user change the run first.
"""

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from .. import hooks
from ..attempt.close import record_completion
from ..base import answer
from ..base.console import print_line
from ..base.errors import UserError
from ..config.loaded import LoadedSpec
from ..contract import records
from ..contract.records.frozen import Revision
from ..contract.records.queued import Submission
from ..contract.rundir import RunDir
from ..contract.spec import Spec
from ..runs import fact_reader, frozen_spec, lookup, revision, run_lock, scratch_purge, state
from ..runs.evidence import is_training_complete
from ..runs.state import RunState
from ..slurm import job_list
from . import arguments, local, local_lines
from .queue import queue
from .submit import choose_cluster, show_job_or_train
from .submit_claim import hold_claim

ENDING_WAIT_S = 30.0
_WAIT = "wait until it ends, or cancel it first"
MAKE = ("", "RUN FLAGS")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_run(parser)
    arguments.add_start(parser)


def command(args: argparse.Namespace) -> int:
    return resume_named(args.run, Request(args.cluster))


def as_it_is(run_dir: RunDir) -> Revision:
    """Return the change of a run that continues as it is: it is not cancelled any more.

    Raises: UserError for a run that has lost its spec or code.
    """
    check_spec(run_dir)
    scratch_purge.check_code(run_dir)
    return uncancel(run_dir)


@dataclass(frozen=True)
class Request:
    """What a user asks of a resume.

    changes: returns how a run changes first, and raises UserError for what is refused. is_changed:
    also a complete run may continue by it. is_checked: build its parts once before it is queued.
    """

    cluster: str = "auto"
    changes: Callable[[RunDir], Revision] = as_it_is
    is_changed: bool = False
    is_checked: bool = False


def resume_named(name: str | None, request: Request) -> int:
    """Continue the run or the group that a user means; returns the exit code."""
    if name is not None and (group := hooks.group(name)) is not None:
        return group.resume(request)
    return run(lookup.find(name), request)


def run(run_dir: RunDir, request: Request) -> int:
    """Continue a run, on this machine to its end; returns the exit code. Raises: as `resume`."""
    is_complete = is_training_complete(fact_reader.read_newest(run_dir))
    if is_over(run_dir, request, is_complete):
        return 0
    is_begun, job_id = resume(run_dir, request, cluster_of([run_dir], request))
    if not is_begun:
        return 0
    with contextlib.suppress(OSError, records.RecordError):  # the run continues all the same
        if line := local_lines.format_continues(run_dir):
            print_line(line)
    return show_job_or_train(run_dir, job_id)


def resume(run_dir: RunDir, request: Request, cluster: str) -> tuple[bool, str | None]:
    """Queue a run again, or claim it for this process, unless it has been completed meanwhile.

    Returns: whether the run continues, and the id of its job. Raises: UserError, FailedError; then
    the run is as it was, with no new job.
    """
    with hold_claim(run_dir):
        refuse_living(run_dir, cluster)
        revision.complete(run_dir)
        # Its job may have ended since, or its batch script was killed before it wrote the result.
        is_complete = record_completion(run_dir, fact_reader.read_newest(run_dir))
        if is_over(run_dir, request, is_complete):
            return False, None
        with changed_runs([run_dir], request, cluster) as runs:
            if cluster == "slurm":
                before = records.read(Submission, run_dir.submission) or Submission()
                return True, queue(runs[run_dir].spec, run_dir, before)
            # Under the claim: another resume must not change the run meanwhile.
            attempt = fact_reader.newest_opened(run_dir) + 1
            run_lock.claim(run_dir, run_lock.this_process(None), attempt)
            return True, None


def cluster_of(run_dirs: Sequence[RunDir], request: Request) -> str:
    """Return where runs continue: on this machine where they began, if Slurm never had a job."""
    facts = map(fact_reader.read_newest, run_dirs)
    here = {each.plan.is_local and each.submission.job_id is None for each in facts if each.plan}
    is_here = here == {True} and request.cluster == "auto"
    return "local" if is_here else choose_cluster(request.cluster)


def is_over(run_dir: RunDir, request: Request, is_complete: bool) -> bool:
    """Return whether a run that may be complete stays as it is; prints it."""
    if is_complete and not request.is_changed:
        answer.give(job_id=None, cluster=None, **run_dir.names())
        print(f"{run_dir.run_id} is already complete")
    return is_complete and not request.is_changed


@contextlib.contextmanager
def changed_runs(
    run_dirs: Sequence[RunDir], request: Request, cluster: str
) -> Iterator[dict[RunDir, LoadedSpec]]:
    """Run a block in which runs are as the request wants them and can be queued, or can run here.

    If it fails, the runs are as they were.
    Raises: FailedError; UserError for a spec that this machine cannot run, and for what is refused
    or needs a confirmation; SpecError for parts that every rank would fail of.
    """
    with revision.changed({each: request.changes(each) for each in run_dirs}):
        # Without the user's file: a mistake is in the code, or in a key of this command.
        runs = {run_dir: LoadedSpec(Spec.read(run_dir.spec), "") for run_dir in run_dirs}
        if cluster == "local":
            local.check_machine(runs[run_dirs[0]].spec, len(local.visible_gpus()))
        hooks.before_queue(runs, cluster == "slurm", request.is_checked)
        yield runs


def check_spec(run_dir: RunDir) -> None:
    """Carry out a change that was interrupted. Raises: UserError without a spec."""
    revision.complete(run_dir)
    if (error := scratch_purge.read_spec(run_dir)[1]) is not None:
        raise error


def uncancel(run_dir: RunDir) -> Revision:
    """Return the change after which a run is not cancelled; restores setup.sh if it is missing."""
    frozen_spec.restore_setup(run_dir)
    return revision.of_files(run_dir, {run_dir.cancelled: None})


def refuse_living(run_dir: RunDir, cluster: str) -> None:
    """Raises: UserError for a run that is queued or runs; FailedError if Slurm does not answer."""
    run = ended_state(run_dir)
    for job_id, life in run.lives.items():
        if life.is_alive:
            what = f"queued or running as job {job_id}"
            if job_id == run.files.next_job_id:
                what = f"queued as job {job_id}, which continues it"
            raise UserError(f"{run_dir.run_id} is {what}", _WAIT)
        if life.is_alive is None and (cluster == "slurm" or not life.is_silent):
            raise state.unknown(run_dir, life)
    if run.process is not None and run.life is not None:
        if run.life.is_alive:
            raise UserError(f"{run_dir.run_id} is running as {run.process.job_id}", _WAIT)
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
