"""The command sweep: runs many points of one spec, as a job array on Slurm or here in turn."""

import argparse
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...base import answer, installation
from ...base.console import display_path, format_metrics, number_ranges, print_line, quantity
from ...base.errors import FailedError, UserError
from ...commands import arguments, catalogue, queue, resume
from ...commands.submit import choose_cluster, new_runs
from ...commands.submit_claim import hold_claim
from ...config.loaded import LoadedSpec
from ...contract import records
from ...contract.records.queued import Submission
from ...contract.rundir import JOB_LOG, RunDir
from ...runs import lookup, ownership, state
from ...runs.freeze import deleted_by_failure, link_in_default_root, new_run_id
from ...runs.state import RunPhase
from ...slurm import sbatch
from ...slurm.cluster import record_settings
from .. import PLUGINS
from . import points as sweep_points
from . import record as sweep_record
from .points import LoadedSweep
from .record import POINTS, PREFIX, SweepPoint, SweepRecord, points_of

SUBMITIT = "submitit"  # its folder in that of the sweep
INTERRUPTED = 130  # exit code of a run that Ctrl-C stopped
MAKE = ("CONFIG", "SET DRY FLAGS CMD")
TAKES_A_COMMAND = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_source(parser, "train.lr=0.01,0.1")
    arguments.add_start(parser)
    parser.add_argument("--dry-run", action="store_true", help="list the points; write nothing")
    arguments.add_no_check(parser)


def command(args: argparse.Namespace) -> int:
    loaded = sweep_points.load(*arguments.source_of(args))
    cluster = choose_cluster(args.cluster)
    if args.dry_run:
        show(loaded, cluster)
        return 0
    return make(loaded, cluster, not args.no_check)


def show(loaded: LoadedSweep, cluster: str) -> None:
    listed = [list(point.overrides) for point in loaded.points]
    array = array_tasks(range(len(listed)), loaded.max_parallel) if cluster == "slurm" else None
    if answer.give(points=listed, array=array):
        return
    for number, words in enumerate(listed):
        print(f"{number}  {' '.join(words)}")
    how = f"--array={array}" if array else "one after the other on this machine"
    print(f"{quantity(len(listed), 'point')}, {how}")


def make(loaded: LoadedSweep, cluster: str, is_checked: bool) -> int:
    """Freeze all points with one copy of the code, then queue them or run them here.

    Returns the exit code. Raises: UserError, FailedError; then there is no sweep.
    """
    first = loaded.points[0].loaded.spec
    root = lookup.runs_root(first.runs_root)
    run_id = new_run_id(root)
    sweep = root / first.name / f"{PREFIX}{run_id}"
    width = len(str(len(loaded.points) - 1))
    runs = {
        RunDir(sweep.with_name(f"{run_id}-p{number:0{width}}")): point.loaded
        for number, point in enumerate(loaded.points)
    }
    with new_runs(runs, cluster, new_sweep_dir(sweep, loaded, list(runs)), is_checked):
        if cluster == "slurm":
            queue_array(sweep, range(len(runs)), runs, loaded.max_parallel)
    announce(sweep)
    if cluster == "slurm":
        return 0
    return run_here(sweep, range(len(runs)), resume.Request(cluster="local"))


@contextlib.contextmanager
def new_sweep_dir(sweep: Path, loaded: LoadedSweep, run_dirs: Sequence[RunDir]) -> Iterator[None]:
    """Run a block with a new, claimed sweep directory; delete it again if the block fails."""
    sweep.mkdir()
    with deleted_by_failure(sweep, run_dirs[0]):
        ownership.set_mode(sweep, int(loaded.points[0].loaded.spec.dir_mode, 8))
        (sweep / POINTS).mkdir()
        (sweep / SUBMITIT).mkdir()
        named = []
        for number, (run_dir, point) in enumerate(zip(run_dirs, loaded.points, strict=True)):
            link = sweep / POINTS / str(number)
            link.symlink_to(os.path.relpath(run_dir.path, link.parent))
            named.append(SweepPoint(run_dir.run_id, point.overrides))
        record = SweepRecord(tuple(named), loaded.metric, loaded.max_parallel)
        records.write(sweep / sweep_record.NAME, record)
        with hold_claim(RunDir(sweep)):
            yield
    link_in_default_root(sweep)


def queue_array(
    sweep: Path, numbers: Sequence[int], runs: Mapping[RunDir, LoadedSpec], limit: int | None
) -> None:
    """Queue points as one job array. numbers: of the points, in the order of their runs.

    Raises: FailedError, UserError; then nothing is queued.
    """
    # Slurm replaces %a by the number of the task. Source: sbatch(1), filename pattern.
    log = f"{POINTS}/%a/{JOB_LOG}"
    specs = (each.spec for each in runs.values())
    options, *others = {tuple(sbatch.sbatch_options(spec, sweep, log)) for spec in specs}
    if others:
        what = "the points ask Slurm for different jobs, but an array is one job"
        raise UserError(what, "make a sweep for each value of these slurm keys")
    first = next(iter(runs))
    known = record_settings(first)
    array = f"--array={array_tasks(numbers, limit)}"
    argv = sbatch.argv_of([*options, array], first.kit / sbatch.SCRIPT, sweep)

    def record(array_id: str) -> None:
        lookup.remember(RunDir(sweep), array_id)
        for number, (run_dir, each) in zip(numbers, runs.items(), strict=True):
            # The point's successor has this command line: it must not start the whole array again.
            alone = Submission(tuple(sbatch.sbatch_argv(each.spec, run_dir)))
            records.write(run_dir.site, known)
            queue.record_job(run_dir, alone, known.cluster, f"{array_id}_{number}")

    array_id = queue.call_sbatch(argv, sweep / SUBMITIT, record)
    print_line(f"job array {array_id}: {quantity(len(runs), 'point')}")


def array_tasks(tasks: Sequence[int], limit: int | None) -> str:
    """Return `0-5%2`: these tasks of an array, at most `limit` of them at a time."""
    return number_ranges(tasks) + (f"%{limit}" if limit else "")


def resume_all(sweep: Path, request: resume.Request) -> int:
    """Continue every point that is not complete and does not run; returns the exit code."""
    run_dirs, record = points_of(sweep), sweep_record.read(sweep)
    numbers = open_points(run_dirs)
    continued = f"{len(numbers)} of {quantity(len(run_dirs), 'point')} continue"
    others = "; the others are complete, queued or running" if len(numbers) < len(run_dirs) else ""
    print_line(f"{sweep.name}: {continued}{others}")
    cluster = resume.cluster_of(run_dirs, request)
    if cluster == "slurm" and numbers:
        chosen = [run_dirs[number] for number in numbers]
        with contextlib.ExitStack() as claims:
            for run_dir in (RunDir(sweep), *chosen):
                claims.enter_context(hold_claim(run_dir))
            if open_points(run_dirs) != numbers:  # now that no other command can queue them
                raise UserError(f"{sweep.name} is being continued", "try again")
            with resume.changed_runs(chosen, request, cluster) as runs:
                queue_array(sweep, numbers, runs, record.max_parallel)
    announce(sweep)
    here = replace(request, cluster=cluster)
    return 0 if cluster == "slurm" else run_here(sweep, numbers, here)


def open_points(run_dirs: Sequence[RunDir]) -> list[int]:
    """Return the numbers of the points that may be continued; Slurm is asked once.

    Raises: UserError, FailedError where it is unknown whether a job has ended.
    """
    numbers = []
    for number, run in enumerate(state.read_all(run_dirs, is_for_change=True)):
        is_active = run.process is not None or any(each.is_alive for each in run.lives.values())
        if run.phase is RunPhase.GONE or is_active:
            continue
        run.refuse_unknown()
        if run.files.problem is not None:
            raise UserError(run.files.problem)
        if run.phase is not RunPhase.COMPLETED:
            numbers.append(number)
    return numbers


def run_here(sweep: Path, numbers: Sequence[int], request: resume.Request) -> int:
    """Run points on this machine, one after the other; returns the exit code.

    A point that fails does not keep the next ones from running. Ctrl-C ends the sweep.
    """
    run_dirs, record, code = points_of(sweep), sweep_record.read(sweep), 0
    for count, number in enumerate(numbers, 1):
        words = " ".join(record.points[number].overrides)
        print_line(f"point {number} ({count} of {len(numbers)}): {words}")
        try:
            ended = resume.run(run_dirs[number], request)
        except (UserError, FailedError, OSError) as error:
            print_line(f"point {number}: error: {error}")
            ended = 1
        if ended == INTERRUPTED:
            print_line(f"stopped; {installation.command('resume', sweep.name)} continues it")
            return ended
        code = max(code, ended)
    with contextlib.suppress(OSError, UserError):  # of a damaged point
        if best := best_point(sweep):
            print(best)
    return code


def best_point(sweep: Path) -> str:
    """Return `best: point 1, train.lr=0.1: held-out accuracy 97.78%`, which `report` ranks first.

    Empty where no point has a value, or the plugin was deleted.
    """
    if "report" not in PLUGINS:
        return ""
    found: dict[str, Any] = {}
    with answer.read_by(found.update):
        catalogue.load("report").command(catalogue.parse(["report", str(sweep), "--json"]))
    first, points = found["ranking"][0], sweep_record.read(sweep).points
    if first["value"] is None:
        return ""
    number = [point.run_id for point in points].index(first["run_id"])
    value = format_metrics({found["metric"]: first["value"]})
    return f"best: point {number}, {' '.join(points[number].overrides)}: {value}"


def announce(sweep: Path) -> None:
    """Print the directory of a sweep and how to follow it; a program gets its points, too."""
    pairs = zip(points_of(sweep), sweep_record.read(sweep).points, strict=True)
    points = [
        {
            "point": number,
            "overrides": list(point.overrides),
            "job_id": lookup.job_id_of(run_dir),
            **run_dir.names(),
        }
        for number, (run_dir, point) in enumerate(pairs)
    ]
    answer.give(sweep_id=sweep.name, sweep_dir=str(sweep), points=points)
    print(f"sweep directory {display_path(sweep)}")
    follow = [installation.command(name, sweep.name) for name in ("status", "report")]
    ranks = f", and {follow[1]} ranks the points" if "report" in PLUGINS else ""
    print(f"next: {follow[0]}{ranks}", flush=True)
