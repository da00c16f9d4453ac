"""The command report: where the time of runs went, as text, as JSON and as a page with plots."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import installation, shared_files
from ..console import display_path, print_line
from ..errors import FailedError, UserError
from ..rundir import RunDir, SweepDir, write_atomic
from ..runs import lookup, state
from . import arguments
from .times import curves, page, ranking, summary, terminal
from .times.summary import TimeSummary
from .views import tensorboard

MAX_COMMANDS = 8  # shown on the page, of all runs together


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of report."""
    parser.add_argument("run", nargs="*", metavar="RUN", help=f"{arguments.RUN}; several: compared")
    parser.add_argument("--runs", default="", metavar="TEXT", help="runs as one text")
    parser.add_argument("--metric", metavar="NAME", help="rank the runs by it, such as eval_loss")
    parser.add_argument(
        "--out", type=arguments.path, metavar="PATH", help="page; default: RUN_DIR/report.html"
    )
    arguments.add_json(parser)


def command(args: argparse.Namespace) -> int:
    """Run report; returns the exit code."""
    try:
        words = [*args.run, *shlex.split(args.runs)]
    except ValueError as error:
        raise UserError(f"--runs {args.runs}: {error}") from error
    sweeps = [sweep for word in words if (sweep := lookup.find_sweep(word)) is not None]
    run_dirs = list(dict.fromkeys(each for word in words or [None] for each in runs_of(word)))
    labels = {run: text for sweep in sweeps for run, text in labels_of(sweep).items()}
    metric = args.metric or metric_of(sweeps)
    ranked = [] if metric is None else rank_by(run_dirs, metric, is_asked=bool(args.metric))
    page_path = args.out
    if page_path is None and not args.json:
        page_path = sweeps[0].report if sweeps else run_dirs[0].report
    summaries = [summary.summarize(run) for run in state.read_all(run_dirs)]
    if args.json:
        print(json.dumps(json_of(summaries, ranked), indent=2))
    else:
        lines = terminal.lines_of(summaries, shutil.get_terminal_size().columns)
        if metric is not None and ranked:
            mode = ranking.mode(run_dirs, metric)
            lines += terminal.ranking_lines(ranked, metric, mode, labels)
        print("\n".join(lines), flush=True)  # before the path of the page, which goes to stderr
    if page_path is not None:
        write_page(summaries, page_path, is_asked=args.out is not None)
    return 0


def runs_of(word: str | None) -> list[RunDir]:
    """Return a sweep's points in their order, else one run. Raises: UserError if there is none."""
    sweep = lookup.find_sweep(word)
    if sweep is None:
        return [lookup.find(word)]
    points = lookup.points_of(sweep)
    run_dirs = [run_dir for run_dir in points if shared_files.is_dir(run_dir.path)]
    for gone in sorted({*points} - {*run_dirs}, key=lambda run_dir: run_dir.run_id):
        print_line(f"{gone.run_id} is left out: its run directory was deleted")
    if not run_dirs:
        raise UserError(f"the run directories of all points of {sweep.sweep_id} were deleted")
    return run_dirs


def labels_of(sweep: SweepDir) -> dict[RunDir, str]:
    """Return the number and the overrides of each point."""
    points = zip(lookup.points_of(sweep), lookup.read_sweep(sweep).points, strict=True)
    return {
        run_dir: f"point {number}  {' '.join(point.overrides)}"
        for number, (run_dir, point) in enumerate(points)
    }


def metric_of(sweeps: Sequence[SweepDir]) -> str | None:
    """Return the metric that ranks the points of the first sweep; None without a sweep."""
    for sweep in sweeps:
        return lookup.read_sweep(sweep).metric or ranking.default_metric(lookup.points_of(sweep))
    return None


def rank_by(run_dirs: Sequence[RunDir], metric: str, is_asked: bool) -> list[ranking.RankedValue]:
    """Return the runs by a metric; none where no run has it and the user did not ask for it.

    Raises: UserError if none of them has it.
    """
    ranked = ranking.rank(run_dirs, metric)
    if all(each.value is None for each in ranked):
        if not is_asked:
            return []
        names = ", ".join(ranking.names_of(run_dirs)) or "no metrics at all"
        raise UserError(f"no run has a value of {metric}\n  hint: they have {names}")
    return ranked


def json_of(
    summaries: Sequence[TimeSummary], ranked: Sequence[ranking.RankedValue]
) -> dict[str, Any]:
    """Return what `report --json` prints."""
    places = [
        {"run_id": each.run_dir.run_id, "run_dir": str(each.run_dir.path)}
        | {"value": each.value, "step": each.step}
        for each in ranked
    ]
    return {"runs": [summary.as_json(each) for each in summaries], "ranking": places}


def write_page(summaries: Sequence[TimeSummary], path: Path, is_asked: bool) -> None:
    """Write the page, and print its path; a default path that refuses it is only a warning."""
    curves_of_runs = [curves.read(each.history) for each in summaries]
    text = page.page_of(
        summaries, curves_of_runs, next_commands([each.run_dir for each in summaries])
    )
    try:
        write_atomic(path, text)
    except OSError as error:
        if is_asked:
            raise FailedError(f"{path}: {error.strerror}") from error
        print_line(
            f"warning: no page: {path}: {error.strerror}\n  hint: --out PATH writes it elsewhere"
        )
        return
    print_line(f"page {display_path(path)}")


def next_commands(run_dirs: Sequence[RunDir]) -> list[str]:
    """Return commands that show more of the runs, for the end of the page."""
    shown = run_dirs[:MAX_COMMANDS]
    commands = [installation.command("logs", each.run_id) for each in shown]
    texts = [tensorboard.command(each) or "" for each in shown]
    return commands + [line for text in texts for line in text.splitlines()]
