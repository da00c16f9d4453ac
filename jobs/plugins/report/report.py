"""The command report: where the time of runs went, as a table, as JSON and as a page with plots."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ... import hooks
from ...base import answer, files, packages
from ...base.console import display_path, format_duration, format_metrics, print_line, quantity
from ...base.errors import FailedError, UserError
from ...commands import arguments, table
from ...contract.rundir import RunDir
from ...runs import lookup, state
from . import ranking, uses
from .uses import RunTimes, Use

MAKE = ("", "RUN... FLAGS")
ONLY_PRINTS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="*", metavar="RUN", help=f"{arguments.RUN}; several: compared")
    parser.add_argument("--metric", metavar="NAME", help="rank the runs by this metric")
    help_of_out = "page; default: report.html of the first run or of the sweep"
    parser.add_argument("--out", type=arguments.path, metavar="PATH", help=help_of_out)


def command(args: argparse.Namespace) -> int:
    groups = [group for word in args.run if (group := hooks.group(word)) is not None]
    run_dirs = list(dict.fromkeys(each for word in args.run or [None] for each in runs_of(word)))
    of_first, labels = of_group(groups[0]) if groups else (None, {})
    metric = args.metric or of_first
    ranked = ranking.rank(run_dirs, metric) if metric else []
    if args.metric and all(each.value is None for each in ranked):
        names = ", ".join(ranking.names_of(run_dirs)) or "no metrics at all"
        raise UserError(f"no run has a value of {metric}", f"they have {names}")
    seen = state.read_all(run_dirs)
    if all(each.files.problem for each in seen):
        raise UserError(str(seen[0].files.problem))
    times = [uses.read(run, labels.get(run.run_dir)) for run in seen]
    places = []
    if metric and any(each.value is not None for each in ranked):
        places = ranking.lines_of(ranked, metric, {each.run_dir: each.name for each in times})
    of_runs, of_ranking = ([each.as_json() for each in found] for found in (times, ranked))
    if not answer.give(runs=of_runs, ranking=of_ranking, metric=metric):
        print("\n".join([*lines_of(times), *places]), flush=True)  # before the line on stderr
    if args.out is not None or not args.json:
        default = (groups[0] if groups else run_dirs[0]).path / "report.html"
        write_page(times, places, args.out or default, is_asked=args.out is not None)
    return 0


def runs_of(word: str | None) -> list[RunDir]:
    """Return a group's runs in their order, else one run. Raises: UserError if there is none."""
    group = None if word is None else hooks.group(word)
    if group is None:
        return [lookup.find(word)]
    points = group.runs()
    run_dirs = [run_dir for run_dir in points if files.is_dir(run_dir.path)]
    if len(run_dirs) < len(points):
        print_line(f"{len(points) - len(run_dirs)} points are left out: they were deleted")
    if not run_dirs:
        raise UserError(f"the run directories of all points of {group.path.name} were deleted")
    return run_dirs


def of_group(group: hooks.Group) -> tuple[str, dict[RunDir, str]]:
    """Return the metric that ranks the runs of a group, and what each run is called there."""
    runs = group.runs()
    from ..sweeps import record

    sweep = record.read(group.path)
    texts = (f"point {n}  {' '.join(point.overrides)}" for n, point in enumerate(sweep.points))
    labels = dict(zip(runs, texts, strict=True))
    return sweep.metric or ranking.default_metric(runs), labels


def lines_of(times: Sequence[RunTimes]) -> list[str]:
    """Return a heading for each run, and a table of the uses of the time with a column for each."""
    rows = []
    for use in Use:
        row = {"": use.value.replace("_", "-")}
        for each in times:  # `12.3 s  4.5%`: the time of a use, and its share
            seconds, wall = each.seconds[use], each.end - each.begin
            row[each.name] = f"{duration(seconds):>12}  {seconds / wall if wall else 0.0:6.1%}"
        if any(each.seconds[use] for each in times):
            rows.append(row)
    columns = ("", *(each.name for each in times))
    return [*map(heading, times), "", *table.text(rows, columns).splitlines()]


def heading(times: RunTimes) -> str:
    """Return what a run is, its hours and its goodput, in one line."""
    parts = [f"{times.name}: {times.run.word}", quantity(len(times.attempts), "attempt")]
    if times.steps_redone:
        parts.append(f"{quantity(times.steps_redone, 'step')} redone")
    end = "its end" if times.run.is_over else "now"
    parts.append(f"{duration(times.end - times.begin)} from submit to {end}")
    parts.append(f"{times.node_hours():.3g} node hours")
    if num_gpus := times.run.files.spec.slurm.num_gpus:
        parts.append(f"{times.node_hours() * num_gpus:.3g} GPU hours")
    if times.goodput is not None:
        parts.append(f"goodput {times.goodput:.1%}")
    if times.speed:
        parts.append(format_metrics(times.speed).replace("  ", ", "))
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Return `12.3 s`, or the time in its two largest units."""
    return f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds, 2)


def write_page(
    times: Sequence[RunTimes], ranking: Sequence[str], path: Path, is_asked: bool
) -> None:
    """Write the page, and print its path; a page that nobody asked for may fail with a line."""
    problem = packages.missing(packages.EXTRAS["report"])
    try:
        from . import page
    except Exception as error:  # such as a matplotlib that was built for another NumPy
        what = f"matplotlib or jinja2 (extra report of slurm-job-kit) cannot be imported: {error}"
        pip = f"{sys.executable} -m pip install --force-reinstall matplotlib jinja2"
        problem = problem or UserError(what, pip)
    if problem is not None:
        if is_asked:
            raise problem
        print_line(f"no page: {problem}")
        return
    try:
        text = page.page_of(times, [*map(heading, times)], lines_of(times), ranking)
        files.write_atomic(path, text)
    except OSError as error:
        if is_asked:
            raise FailedError(f"{path}: {error.strerror}") from error
        print_line(f"warning: no page: {path}: {error.strerror}; --out PATH is another file")
        return
    print_line(f"page {display_path(path)}")
