"""Slurm's time texts: seconds, the canonical form, and how Slurm reads an unquoted number.

Source: sbatch(1), --time: minutes, minutes:seconds, hours:minutes:seconds, days-hours,
days-hours:minutes and days-hours:minutes:seconds.
"""

from __future__ import annotations

import re

from ..console import format_duration

FORMS = "M, M:S, H:M:S, D-H, D-H:M or D-H:M:S"
_DIGITS = "([0-9]{1,9})"
_SHORT = re.compile(rf"{_DIGITS}(?::{_DIGITS})?(?::{_DIGITS})?")
_DAYS = re.compile(rf"{_DIGITS}-{_DIGITS}(?::{_DIGITS})?(?::{_DIGITS})?")
_ENDLESS = {"unlimited", "infinite", "-1"}


def parse(text: str) -> int:
    """Return the seconds of a time text in one of the six documented forms.

    Raises ValueError; its text continues a sentence that begins with the value.
    """
    if text.strip().lower() in _ENDLESS:
        raise ValueError("is not supported: the run must know when to save")
    seconds = _seconds(text)
    if seconds is None:
        raise ValueError(f"is none of Slurm's forms {FORMS}")
    if seconds == 0:
        raise ValueError("is zero seconds")
    return seconds


def _seconds(text: str) -> int | None:
    if match := _DAYS.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if match := _SHORT.fullmatch(text):
        first, second, third = match.groups()
        if third is not None:
            return (int(first) * 60 + int(second)) * 60 + int(third)
        return int(first) * 60 + int(second or 0)
    return None


def parse_or_zero(text: str) -> int:
    """Return the seconds of a time text, or 0 if the text has none of Slurm's forms."""
    return _seconds(text) or 0


def canonical(seconds: int) -> str:
    """Return `HH:MM:SS`, or `D-HH:MM:SS` from one day on: no reader mistakes the units of these."""
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def misreading(written: str) -> tuple[str, str] | None:
    """Return how Slurm reads an unquoted `30` or `4:00`, and a hint with both rewrites.

    None for every other text; the forms with hours or days need no quotes.
    """
    match = re.fullmatch(rf"{_DIGITS}(?::{_DIGITS})?", written)
    taken = parse_or_zero(written)
    if match is None or taken == 0:
        return None
    other = _other_reading(match[1], match[2])
    what = f"{written} means {format_duration(taken)} to Slurm"
    first = f'write "{canonical(other)}" for {format_duration(other)}'
    second = f'"{_with_hours(taken)}" if you meant {_units(match[2], taken)}'
    return what, f"{first}, or {second}"


def _other_reading(first: str, second: str | None) -> int:
    """Return what people mean instead: 4:30 as H:M, 12 as hours, 14400 as seconds."""
    if second is not None:
        return int(first) * 3600 + int(second) * 60
    return int(first) * 3600 if int(first) < 100 else int(first)


def _with_hours(seconds: int) -> str:
    text = canonical(seconds)
    return text[1:] if text.startswith("00:") else text


def _units(second: str | None, seconds: int) -> str:
    return "minutes" if seconds % 60 == 0 or second is None else "minutes and seconds"
