"""The command why: what a run waits for, or what ended it, and what to do."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..console import display_path
from ..errors import UserError
from ..log_text import first_line
from ..rundir import RunDir
from ..runs import lookup, state
from . import arguments
from .answer import Answer, answer_of
from .views.left_out import in_words, left_out_of

MAX_EARLIER = 10
MAKE = ("", "RUN FLAGS")
ONLY_PRINTS = True


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
    answer, left_out = answer_of(run), left_out_of(run.files)
    if is_json:
        names = {"run_id": run_dir.run_id, "run_dir": str(run_dir.path)}
        print(json.dumps(names | as_json(answer, left_out), indent=2))
    else:
        print(f"{run_dir.path.parent.name} {run_dir.run_id}: {format_answer(answer, left_out)}")
    return 0


def format_answer(answer: Answer, left_out: Sequence[dict[str, Any]]) -> str:
    """Return the answer as a short paragraph: kind, reason, place, log, advice, command."""
    lines = [f"{answer.kind}: {answer.text}"]
    if answer.place is not None:
        lines.append(f"  at: {display_path(Path(answer.place))}")
    if answer.log is not None:
        lines.append(f"  log: {display_path(Path(answer.log))}")
    lines += [f"    {line}" for line in answer.last_lines]
    if (more := len(answer.earlier) - MAX_EARLIER) > 0:
        lines.append(f"  {more} earlier ones are in attempts.jsonl")
    lines += [f"  attempt {n}: {k}: {first_line(t)}" for n, k, t in answer.earlier[-MAX_EARLIER:]]
    lines += [f"  left out: {in_words(each)}" for each in left_out]
    lines += [f"  what to do: {answer.advice}", f"  command: {answer.command}"]
    return "\n".join(lines)


def as_json(answer: Answer, left_out: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the answer as a JSON value."""
    earlier = [{"attempt": n, "cause": k, "text": text} for n, k, text in answer.earlier]
    return {
        "cause": answer.kind,
        "text": answer.text,
        "place": answer.place,
        "log": answer.log,
        "advice": answer.advice,
        "command": answer.command,
        "delays": earlier,
        "last_lines": list(answer.last_lines),
        "left_out": [*left_out],
    }
