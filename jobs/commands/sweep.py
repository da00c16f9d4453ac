"""The command sweep: runs many points of one spec, or continues the sweep with the same points."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import installation, records
from ..console import print_line, quantity
from ..records.sweeps import SweepPoint, SweepRecord
from ..rundir import RunDir, SweepDir
from ..runs import lookup
from ..runs.freeze import link_in_default_root, new_run_id
from ..slurm.sbatch import array_options, array_tasks
from . import arguments
from .continuing import Request
from .submit import Options, choose_cluster, new_runs
from .submit_claim import hold_claim
from .sweeps import runner, specs
from .sweeps.runner import INTERRUPTED, PointState
from .sweeps.specs import LoadedSweep
from .times import ranking, terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of sweep."""
    arguments.add_config_file(parser)
    arguments.add_overrides(parser, "train.lr=0.01,0.1")
    arguments.add_start(parser)
    parser.add_argument("--dry-run", action="store_true", help="list the points; write nothing")
    help_of_limit = "how many points may run at a time"
    parser.add_argument("--max-parallel", type=_limit, metavar="N", help=help_of_limit)
    help_of_retry = "also continue points that failed, were held or cancelled"
    parser.add_argument("--retry", action="store_true", help=help_of_retry)
    arguments.add_no_check(parser)


def _limit(text: str) -> int:
    """Return a number of points. Raises: ArgumentTypeError."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of points, from 1 on")
    return int(text)


def command(args: argparse.Namespace) -> int:
    """Run sweep; returns the exit code."""
    loaded_sweep = specs.load(args.config, arguments.overrides_of(args))
    limit = args.max_parallel or loaded_sweep.max_parallel
    if loaded_sweep.num_equal:
        left_out = quantity(loaded_sweep.num_equal, "point")
        print_line(f"{left_out} left out, because another one has the same spec")
    same = same_sweep(loaded_sweep)
    if args.dry_run:
        if same is None and choose_cluster(args.cluster) == "slurm":
            runner.check_array_size(len(loaded_sweep.points))
        show(loaded_sweep, same, limit, args.cluster, args.json)
        return 0
    start = (args.cluster, args.json, not args.no_check)
    options = SweepOptions(*start, limit=limit, is_retried=args.retry)
    return make(loaded_sweep, options) if same is None else go_on(same, options)


@dataclass(frozen=True)
class SweepOptions(Options):
    """The options of sweep.

    limit: how many points may run at a time; None: no limit.
    is_retried: whether points that ended badly run again.
    """

    limit: int | None = None
    is_retried: bool = False


def same_sweep(loaded_sweep: LoadedSweep) -> SweepDir | None:
    """Return the newest sweep of the same points. One whose record cannot be read is none."""
    digest = loaded_sweep.digest
    for each in lookup.all_sweeps():
        record = records.read_leniently(SweepRecord, each.record)
        if record is not None and record.digest == digest:
            return each
    return None


def show(
    loaded_sweep: LoadedSweep, same: SweepDir | None, limit: int | None, cluster: str, as_json: bool
) -> None:
    """Print the points and how they would run: the job arrays that they need, unless here."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, point in enumerate(loaded_sweep.points):
        options = array_options(point.loaded.spec, SweepDir(Path("sweep")))
        groups.setdefault(tuple(options), []).append(number)
    is_local = choose_cluster(cluster) == "local"
    arrays = [] if is_local else [array_tasks(numbers, limit) for numbers in groups.values()]
    listed = [list(point.overrides) for point in loaded_sweep.points]
    if as_json:
        print(json.dumps({"points": listed, "arrays": arrays, "sweep_id": same and same.sweep_id}))
        return
    for number, words in enumerate(listed):
        print(f"{number}  {' '.join(words)}")
    most = f", at most {limit} at a time" if limit else ""
    tasks = f"{quantity(len(arrays), 'job array')}: --array={', --array='.join(arrays)}"
    how = ", one after the other on this machine" if is_local else f"{most}; on Slurm {tasks}"
    print(f"{quantity(len(listed), 'point')}{how}")
    if same is not None:
        print(f"this would continue {same.sweep_id}, which has these points")


def make(loaded_sweep: LoadedSweep, options: SweepOptions) -> int:
    """Freeze all points with one copy of the code, then queue them or run them here.

    Returns the exit code. Raises: UserError, FailedError; then there is no sweep.
    """
    first, cluster = loaded_sweep.points[0].loaded.spec, choose_cluster(options.cluster)
    if cluster == "slurm":
        runner.check_array_size(len(loaded_sweep.points))
    run_id = new_run_id()
    sweep = SweepDir(lookup.runs_root(first.runs_root) / first.name / f"sweep-{run_id}")
    width = len(str(len(loaded_sweep.points) - 1))
    runs = {
        RunDir(sweep.path.with_name(f"{run_id}-p{number:0{width}}")): point.loaded
        for number, point in enumerate(loaded_sweep.points)
    }
    numbers = range(len(runs))
    with new_runs(
        runs, cluster, options, new_sweep_dir(sweep, loaded_sweep, list(runs), options.limit)
    ):
        if cluster == "slurm":
            runner.queue_arrays(sweep, numbers, runs, options.limit)
    if cluster == "local":
        return run(sweep, numbers, options)
    runner.announce(sweep, options.as_json)
    return 0


@contextlib.contextmanager
def new_sweep_dir(
    sweep: SweepDir, loaded_sweep: LoadedSweep, run_dirs: Sequence[RunDir], limit: int | None
) -> Iterator[None]:
    """Run a block with a new, claimed sweep directory; delete it again if the block fails."""
    sweep.path.mkdir()
    try:
        sweep.path.chmod(int(loaded_sweep.points[0].loaded.spec.dir_mode, 8))
        sweep.points.mkdir()
        sweep.submitit.mkdir()
        for number, run_dir in enumerate(run_dirs):
            link = sweep.point(number)
            link.symlink_to(os.path.relpath(run_dir.path, link.parent))
        named = tuple(
            SweepPoint(run_dir.run_id, point.overrides)
            for run_dir, point in zip(run_dirs, loaded_sweep.points, strict=True)
        )
        records.write(
            sweep.record, SweepRecord(loaded_sweep.digest, named, loaded_sweep.metric, limit)
        )
        with hold_claim(RunDir(sweep.path)):
            yield
    except BaseException as error:
        if not getattr(error, "may_be_queued", False):
            shutil.rmtree(sweep.path, ignore_errors=True)
        raise
    link_in_default_root(sweep.path)


def go_on(sweep: SweepDir, options: SweepOptions) -> int:
    """Continue a sweep: complete points are left out, and those that are queued or run.

    Returns the exit code.
    """
    states = runner.states_of(lookup.points_of(sweep))
    print_line(runner.summary(sweep, states))
    wanted = {PointState.OPEN} | ({PointState.ENDED} if options.is_retried else set())
    numbers = [number for number, state in enumerate(states) if state in wanted]
    if PointState.ENDED in states and not options.is_retried:
        retry = installation.command("resume", sweep.sweep_id)
        option = "RETRY=1" if installation.IS_BY_MAKE else "--retry"
        print_line(f"points that ended are left out: {option}, or {retry}, continues them")
    if not numbers:
        if options.as_json:
            runner.announce(sweep, True)
        else:
            show_ranking(sweep, states)
        return 0
    return run(sweep, numbers, options)


def run(sweep: SweepDir, numbers: Sequence[int], options: SweepOptions) -> int:
    """Queue points, or run them here and then print all, best first; returns the exit code."""
    cluster = choose_cluster(options.cluster)
    request = Request(cluster=cluster)
    code = runner.run(sweep, numbers, request, options.limit, options.as_json)
    if code == INTERRUPTED:
        print_line("stopped; the same command continues the sweep")
    if cluster == "local" and not options.as_json:
        show_ranking(sweep, runner.states_of(lookup.points_of(sweep)))
    return code


def show_ranking(sweep: SweepDir, states: Sequence[PointState]) -> None:
    """Print all points with their states, best first."""
    run_dirs, record = lookup.points_of(sweep), lookup.read_sweep(sweep)
    metric = record.metric or ranking.default_metric(run_dirs)
    width = max(map(len, states))
    labels = {
        run_dir: f"point {number}  {state:<{width}}  {' '.join(point.overrides)}"
        for number, (run_dir, state, point) in enumerate(
            zip(run_dirs, states, record.points, strict=True)
        )
    }
    ranked, mode = ranking.rank(run_dirs, metric), ranking.mode(run_dirs, metric)
    print("\n".join(terminal.ranking_lines(ranked, metric, mode, labels)))
