"""The answer to why a run waits or ended, and its form as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...console import display_path
from ...kinds import Kind
from ...log_text import first_line
from ...runs.places import FileLine
from ..views.left_out import LeftOut


@dataclass(frozen=True)
class Reason:
    """What ended or delayed attempts: its name, a sentence without its dot, and the evidence."""

    kind: Kind
    text: str
    place: FileLine | None = None
    attempts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Answer:
    """Why a run is in its state.

    cause, text, place: the first cause of it. delays: what ended or delayed earlier attempts, the
    oldest first. command: to copy. last_lines: the end of the log where the cause is unknown.
    left_out: the nodes that the run does without.
    """

    cause: Kind
    text: str
    place: FileLine | None
    advice: str
    command: str
    delays: tuple[Reason, ...] = ()
    last_lines: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


def group_reasons(reasons: Sequence[Reason]) -> tuple[Reason, ...]:
    """Return the same reasons; equal ones of neighbours become one, with the place of the first."""
    groups: list[Reason] = []
    for each in reasons:
        last = groups[-1] if groups else None
        if last is not None and (last.kind, last.text) == (each.kind, each.text):
            groups[-1] = replace(last, attempts=(*last.attempts, *each.attempts))
        else:
            groups.append(each)
    return tuple(groups)


def format_answer(answer: Answer) -> str:
    """Return the answer as a short paragraph with its evidence, the advice, and the command."""
    first, *further = answer.text.split("\n")
    lines = [f"{answer.cause}: {first}{'' if further else '.'}"]
    lines += [f"    {line}" for line in further]
    if answer.place is not None:
        lines.append(f"  evidence: {answer.place}")
    lines += [f"    {line}" for line in answer.last_lines]
    lines += [
        f"  {_attempts(each)}{each.kind}: {first_line(each.text)}{_at(each)}"
        for each in answer.delays
    ]
    lines += [f"  left out: {each}" for each in answer.left_out]
    lines.append(f"  what to do: {answer.advice}")
    lines.append(f"  command: {answer.command}")
    return "\n".join(lines)


def _attempts(reason: Reason) -> str:
    numbers = reason.attempts
    if not numbers:
        return ""
    if len(numbers) == 1:
        return f"attempt {numbers[0]}: "
    is_row = numbers == tuple(range(numbers[0], numbers[0] + len(numbers)))
    shown = f"{numbers[0]}-{numbers[-1]}" if is_row else ", ".join(map(str, numbers))
    return f"attempts {shown}: "


def _at(reason: Reason) -> str:
    return "" if reason.place is None else f" ({reason.place})"


def as_json(answer: Answer) -> dict[str, Any]:
    """Return the answer as a JSON value."""
    return {
        "cause": str(answer.cause),
        "text": answer.text,
        "evidence": _place(answer.place),
        "advice": answer.advice,
        "command": answer.command,
        "delays": [
            {
                "cause": str(each.kind),
                "attempts": list(each.attempts),
                "text": each.text,
                "evidence": _place(each.place),
            }
            for each in answer.delays
        ],
        "last_lines": list(answer.last_lines),
        "left_out": [each.as_json() for each in answer.left_out],
    }


def _place(place: FileLine | None) -> dict[str, Any] | None:
    return None if place is None else {"file": display_path(place.path), "line": place.line}
