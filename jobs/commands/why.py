"""The command why: what a run waits for, or what ended it, with evidence and a way out."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

from ..errors import UserError
from ..rundir import RunDir
from ..runs import lookup, state
from . import arguments
from .answers import find_answer, observation
from .answers.answer import as_json, format_answer
from .views.left_out import left_out_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of why."""
    arguments.add_run(parser)
    arguments.add_json(parser)


def command(args: argparse.Namespace) -> int:
    """Run why; returns the exit code."""
    return why(lookup.find(args.run), args.json)


def why(run_dir: RunDir, is_json: bool) -> int:
    """Print why a run is in its state; returns 0.

    Raises: RecordError, OSError; UserError for a run that cannot be read.
    """
    run = state.read(run_dir)
    if run.files.problem is not None:
        raise UserError(run.files.problem)
    answer = find_answer.answer_of(observation.read(run))
    answer = replace(answer, left_out=tuple(left_out_of(run.files)))
    if is_json:
        names = {"run_id": run_dir.run_id, "run_dir": str(run_dir.path)}
        print(json.dumps(names | as_json(answer), indent=2))
    else:
        print(f"{run_dir.path.parent.name} {run_dir.run_id}: {format_answer(answer)}")
    return 0
