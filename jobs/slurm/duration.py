"""Slurm's time texts: their seconds, their canonical form, and what an unquoted number means.

Source: sbatch(1), --time: minutes, minutes:seconds, hours:minutes:seconds, days-hours,
days-hours:minutes and days-hours:minutes:seconds.
"""

from __future__ import annotations

import re

FORMS = "M, M:S, H:M:S, D-H, D-H:M or D-H:M:S"
MAX_S = 3650 * 86400
_DIGITS = "([0-9]{1,9})"
_SHORT = re.compile(rf"{_DIGITS}(?::{_DIGITS})?(?::{_DIGITS})?")
_DAYS = re.compile(rf"{_DIGITS}-{_DIGITS}(?::{_DIGITS})?(?::{_DIGITS})?")
_ENDLESS = {"unlimited", "infinite", "-1"}
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def parse(text: str) -> int:
    """Seconds of a time text in one of the six documented forms.

    Raises ValueError whose text says what is wrong, as the end of a sentence about the value.
    """
    if text.strip().lower() in _ENDLESS:
        raise ValueError("is no limit, and a run needs one: it stops and saves ahead of it")
    seconds = _seconds(text)
    if seconds is None:
        raise ValueError(f"is none of Slurm's forms {FORMS}")
    if not 0 < seconds <= MAX_S:
        raise ValueError("is no time at all" if seconds == 0 else "is more than ten years")
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


def canonical(seconds: int) -> str:
    """`HH:MM:SS`, or `D-HH:MM:SS` from one day on: forms that nobody misreads."""
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def misreading(written: str) -> tuple[str, str] | None:
    """What Slurm would take an unquoted `30` or `4:00` for, and a hint with both rewrites.

    None where the text says its units: those forms need no quotes.
    """
    match = re.fullmatch(rf"{_DIGITS}(?::{_DIGITS})?", written)
    if match is None or not 0 < parse_or_zero(written) <= MAX_S:
        return None
    taken = parse(written)
    other = _other_reading(match[1], match[2])
    what = f"{written} means {words(taken)} to Slurm"
    hint = f'write "{canonical(other)}" for {words(other)}, or "{_unit_rewrite(taken)}" if you '
    return what, f"{hint}meant {_unit(match[2], taken)}"


def parse_or_zero(text: str) -> int:
    """Seconds of a time text, 0 where it is none."""
    return _seconds(text) or 0


def _other_reading(first: str, second: str | None) -> int:
    """What people mean instead: 4:30 as H:M, 12 as hours, 14400 as seconds."""
    if second is not None:
        return int(first) * 3600 + int(second) * 60
    return int(first) * 3600 if int(first) < 100 else int(first)


def _unit_rewrite(seconds: int) -> str:
    text = canonical(seconds)
    return text[1:] if text.startswith("00:") else text


def _unit(second: str | None, seconds: int) -> str:
    return "minutes" if seconds % 60 == 0 or second is None else "minutes and seconds"


def words(seconds: int) -> str:
    """`four hours 30 minutes`: a duration as it is said."""
    parts = []
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            number = _NUMBERS[count] if count < len(_NUMBERS) else str(count)
            parts.append(f"{number} {unit}{'' if count == 1 else 's'}")
    return " ".join(parts) or "no time"
