"""Runs points of a sweep: as a job array on Slurm, or one after the other on this machine."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from ... import installation, records, shared_files
from ...attempt import exclude_nodes
from ...attempt.close import write_missing_result
from ...config.load import LoadedSpec
from ...console import display_path, number_ranges, print_line, quantity
from ...errors import FailedError, UserError
from ...records.ended import Cause
from ...records.queued import SlurmSite, Submission
from ...rundir import RunDir, SweepDir, write_atomic
from ...runs import lookup, state
from ...runs.state import RunPhase, RunState
from ...slurm import client, executor, sbatch, site
from .. import continuing, queue
from ..submit import choose_cluster
from ..submit_claim import hold_claim

INTERRUPTED = 130  # exit code of a run that Ctrl-C stopped


class PointState(StrEnum):
    """How far a point of a sweep is."""

    COMPLETE = "complete"
    ACTIVE = "active"  # queued or running
    OPEN = "open"  # not begun, or stopped on request on this machine
    ENDED = "ended"  # failed, held or cancelled
    GONE = "gone"  # its run directory was deleted


@dataclass(frozen=True)
class SweepTask:
    """A point that is to be run. loaded: its spec, and the user's input for the places of keys."""

    number: int
    run_dir: RunDir
    loaded: LoadedSpec


def states_of(run_dirs: Sequence[RunDir]) -> list[PointState]:
    """Return how far each point is; Slurm is asked once for all of them.

    Raises: UserError, FailedError where it is unknown whether a job has ended.
    """
    return [_state_of(run) for run in state.read_all(run_dirs, is_for_change=True)]


def _state_of(run: RunState) -> PointState:
    if run.phase is RunPhase.GONE:
        return PointState.GONE
    if run.phase is RunPhase.COMPLETED:
        write_missing_result(run)
        return PointState.COMPLETE
    if run.process is not None or any(life.is_alive for life in run.lives.values()):
        return PointState.ACTIVE
    for life in run.lives.values():
        if life.is_alive is None:
            raise state.unknown(run.run_dir, life)
    if run.files.problem is not None:
        raise UserError(run.files.problem)
    write_missing_result(run)
    if run.files.submitted is None and (run.phase is RunPhase.FROZEN or _is_stopped_here(run)):
        return PointState.OPEN
    return PointState.ENDED


def _is_stopped_here(run: RunState) -> bool:
    """Return whether a person stopped the run on this machine, or its process was killed."""
    last = run.files.last
    return run.result is None or (last is not None and last.cause is Cause.INTERRUPTED)


def begin(
    sweep: SweepDir, numbers: Sequence[int], request: continuing.Request, limit: int | None
) -> None:
    """Queue points of a sweep, from their newest checkpoints where they have one.

    limit: how many may run at a time; None: all.
    Raises: UserError, FailedError; then no job is queued, and the runs are as they were.
    """
    run_dirs = lookup.points_of(sweep)
    chosen = [run_dirs[number] for number in numbers]
    with contextlib.ExitStack() as claims:
        for run_dir in chosen:
            claims.enter_context(hold_claim(run_dir))
        # Now that no other command can queue them.
        for run_dir, run in zip(chosen, states_of(chosen), strict=True):
            if run is PointState.ACTIVE:
                raise UserError(f"{run_dir.run_id} is queued or running\n  hint: try again")
        with continuing.changed_runs(chosen, request, "slurm") as runs:
            queue_arrays(sweep, numbers, runs, limit)


def run_here(
    sweep: SweepDir, numbers: Sequence[int], request: continuing.Request, as_json: bool
) -> int:
    """Run points on this machine, one after the other; returns the exit code.

    as_json: all output goes to stderr, because stdout has one JSON value.

    A point that fails does not keep the next ones from running. Ctrl-C ends the sweep.
    """
    run_dirs, code = lookup.points_of(sweep), 0
    overrides = [point.overrides for point in lookup.read_sweep(sweep).points]
    for count, number in enumerate(numbers, 1):
        run_dir = run_dirs[number]
        try:
            if states_of([run_dir])[0] in (PointState.ACTIVE, PointState.COMPLETE):
                print_line(f"point {number}: another process runs it, or has done so")
                continue
            print_line(f"point {number} ({count} of {len(numbers)}): {' '.join(overrides[number])}")
            with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
                ended = continuing.resume(run_dir, request, False)
        except (UserError, FailedError, OSError) as error:
            print_line(f"point {number}: error: {error}")
            ended = 1
        if ended == INTERRUPTED:
            return ended
        code = max(code, ended)
    return code


def check_array_size(num_points: int) -> None:
    """Raises: UserError for more points than a job array of this site can have."""
    config = site.query_config()
    most = None if config is None else config.max_array_size
    if most is not None and num_points > most:  # the greatest number of a task is one less
        raise UserError(
            f"the sweep has {quantity(num_points, 'point')}, and job arrays have at most {most} "
            f"tasks here (MaxArraySize={most})\n  hint: sweep fewer values at a time (several "
            "sweeps), or take some of them: random with num_points"
        )


def queue_arrays(
    sweep: SweepDir, numbers: Sequence[int], runs: Mapping[RunDir, LoadedSpec], limit: int | None
) -> None:
    """Queue points as one job array, or one for each different request.

    numbers: of the points, in the order of their runs.
    Raises: FailedError, UserError; then nothing is queued.
    """
    tasks = [SweepTask(n, *each) for n, each in zip(numbers, runs.items(), strict=True)]
    groups: dict[tuple[str, ...], list[SweepTask]] = {}
    for task in tasks:
        queued_before = _submission_of(task.run_dir)
        spec = exclude_nodes.without_bad_nodes(task.run_dir, task.loaded.spec, queued_before)
        groups.setdefault(tuple(sbatch.array_options(spec, sweep)), []).append(task)
    for group in groups.values():
        _check_site(group)
    queued: list[str] = []
    before = [(task.run_dir.submission, _text_of(task.run_dir.submission)) for task in tasks]
    try:
        for options, group in groups.items():
            queued.append(_queue_array(sweep, options, group, limit))
    except BaseException:
        if queued:
            client.cancel(*queued)
        for path, text in before:  # the cancelled job is not one that the point had
            if text is None:
                path.unlink(missing_ok=True)
            else:
                write_atomic(path, text)
        raise


def _submission_of(run_dir: RunDir) -> Submission:
    return records.read(Submission, run_dir.submission) or Submission()


def _text_of(path: Path) -> str | None:
    with contextlib.suppress(FileNotFoundError):
        return shared_files.read_text(path)
    return None


def _check_site(group: Sequence[SweepTask]) -> None:
    """Check the request of a group once, and record the site for all of its points."""
    first = group[0]
    queue.check_site(first.loaded.spec, first.run_dir)
    site = records.read(SlurmSite, first.run_dir.site)
    if site is None:
        return
    for task in group[1:]:
        records.write(task.run_dir.site, site)
    restart = first.loaded.spec.slurm.restart
    if restart == "successor" or (restart == "auto" and site.cancels_preempted):
        print_line(
            "note: at this site each point gets a second job that waits for the end of the first. "
            "These jobs are outside of the array and of its limit"
        )


def _queue_array(
    sweep: SweepDir,
    options: Sequence[str],
    group: Sequence[SweepTask],
    limit: int | None,
) -> str:
    """Queue one array, and record in each run its job; returns the id of the array."""
    numbers = [task.number for task in group]
    script = group[0].run_dir.kit / sbatch.SCRIPT
    argv = sbatch.array_argv(options, script, sweep, numbers, limit)

    def record(array_id: str) -> None:
        lookup.remember(RunDir(sweep.path), array_id)
        for task in group:
            # The point's successor has this command line: it must not start the whole array again.
            run_dir, job_id = task.run_dir, f"{array_id}_{task.number}"
            argv = tuple(sbatch.sbatch_argv(task.loaded.spec, run_dir))
            taken_back = _submission_of(run_dir).nodes_taken_back
            alone = Submission(argv, nodes_taken_back=taken_back)
            queue.record_job(run_dir, alone, records.read(SlurmSite, run_dir.site), job_id)

    array_id = queue.call_sbatch(argv, group[0].loaded, sweep.submitit, record)
    print_line(f"job array {array_id}: {quantity(len(group), 'point')}, {number_ranges(numbers)}")
    return array_id


def resume_all(sweep: SweepDir, request: continuing.Request, as_json: bool) -> int:
    """Continue every point that is not complete and does not run; returns the exit code."""
    states = states_of(lookup.points_of(sweep))
    print_line(summary(sweep, states))
    wanted = (PointState.OPEN, PointState.ENDED)
    numbers = [number for number, state in enumerate(states) if state in wanted]
    return run(sweep, numbers, request, as_json=as_json)


def run(
    sweep: SweepDir,
    numbers: Sequence[int],
    request: continuing.Request,
    limit: int | None = None,
    as_json: bool = False,
) -> int:
    """Queue points or run them here, and print the sweep; returns the exit code.

    limit: how many may run at a time; None: as many as the sweep was made with.
    """
    request = replace(request, cluster=choose_cluster(request.cluster))
    if numbers and request.cluster == "slurm":
        executor.begin_import()
        with hold_claim(RunDir(sweep.path)):
            begin(sweep, numbers, request, limit or lookup.read_sweep(sweep).max_parallel)
    announce(sweep, as_json)
    if request.cluster == "slurm":
        return 0
    return run_here(sweep, numbers, request, as_json)


def announce(sweep: SweepDir, as_json: bool) -> None:
    """Print the directory of a sweep and how to follow it; as JSON with its points."""
    if not as_json:
        print(f"sweep directory {display_path(sweep.path)}")
        print(f"next: {installation.command('status', sweep.sweep_id)}", flush=True)
        return
    run_dirs, record = lookup.points_of(sweep), lookup.read_sweep(sweep)
    points = [
        {
            "point": number,
            "overrides": list(point.overrides),
            "run_id": point.run_id,
            "run_dir": str(run_dir.path),
            "job_id": lookup.job_id_of(run_dir),
        }
        for number, (run_dir, point) in enumerate(zip(run_dirs, record.points, strict=True))
    ]
    whole = {"sweep_id": sweep.sweep_id, "sweep_dir": str(sweep.path), "points": points}
    print(json.dumps(whole), flush=True)


def summary(sweep: SweepDir, states: Sequence[PointState]) -> str:
    """Return `sweep-...: 4 points: 2 complete, 1 active, 1 ended`."""
    counts = {state: states.count(state) for state in PointState}
    listed = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return f"{sweep.sweep_id}: {quantity(len(states), 'point')}: {listed}"
