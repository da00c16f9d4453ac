"""Slurm's time texts: seconds, the canonical form, and how Slurm reads an unquoted number.

Source: sbatch(1), --time: minutes, minutes:seconds, hours:minutes:seconds, days-hours,
days-hours:minutes and days-hours:minutes:seconds.
"""

import re

from ..base.console import format_duration

_DIGITS = "([0-9]{1,9})"
_FORM = re.compile(rf"(?:{_DIGITS}-)?{_DIGITS}(?::{_DIGITS})?(?::{_DIGITS})?")
_ENDLESS = {"unlimited", "infinite", "-1"}


def parse(text: str) -> int:
    """Return the seconds of a time text in one of the six documented forms.

    Raises ValueError; its text continues a sentence that begins with the value.
    """
    if text.strip().lower() in _ENDLESS:
        raise ValueError("is not supported: the run must know when to save")
    if _FORM.fullmatch(text) is None:
        raise ValueError("is none of Slurm's forms M, M:S, H:M:S, D-H, D-H:M or D-H:M:S")
    seconds = parse_or_zero(text)
    if seconds == 0:
        raise ValueError("is zero seconds")
    return seconds


def parse_or_zero(text: str) -> int:
    """Return the seconds of a time text, or 0 if the text has none of Slurm's forms."""
    if (match := _FORM.fullmatch(text)) is None:
        return 0
    days, first, second, third = map(int, match.groups("0"))
    if match[1] is None and match[4] is None:
        return first * 60 + second
    return ((days * 24 + first) * 60 + second) * 60 + third


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
    # What people mean: 4:30 as H:M, 12 as hours, 14400 as seconds.
    first, is_seconds = int(match[1]), match[2] is None and int(match[1]) >= 100
    other = first if is_seconds else first * 3600 + int(match[2] or 0) * 60
    same, units = re.sub("^00:", "0:", canonical(taken)), "minutes"
    units += " and seconds" if taken % 60 else ""
    what = f"{written} means {format_duration(taken)} to Slurm"
    hint = f'write "{canonical(other)}" for {format_duration(other)}, or "{same}" if you meant'
    return what, f"{hint} {units}"
