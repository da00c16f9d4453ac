"""Compares the lines with numbers that runs printed or wrote as text."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...console import quantity
from .final_state import TEXTS, visible_name
from .judge import Tried

ROWS = (".jsonl", ".json", ".csv", ".tsv")  # each must have all rows once
SUFFIXES = (*TEXTS, ".json")
_CLOCK = re.compile(
    r"\b\d{4}-\d\d-\d\d|\b\d\d/\d\d/\d{4}\b|\b\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?\b"
    r"|\b1\d{9}(?:\.\d+)?\b"  # Unix time
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|\bnan\b|\binf\b", re.IGNORECASE)
_FRACTION = re.compile(
    r"-?\d+(?:\.\d+(?:[eE][-+]?\d+)?|[eE][-+]?\d+)|\bnan\b|\binf\b", re.IGNORECASE
)
_WHOLE = re.compile(r"-?\d+")
_BAR = re.compile(r"[\s█▉▊▋▌▍▎▏#=>-]+")  # of a progress bar, and spaces that align numbers
FEWEST_DIGITS = 3  # of a fraction: two times such as 0.03 s may be equal by chance
FEWEST_MORE = 4  # digits beyond two, of all lines of a kind: one of 6 digits, or 4 of 3 digits

UNREAD = "\0"  # the text of a file that is no JSON

Numbers = tuple[str, ...]
MetricLine = tuple[str, Numbers]  # a line and its numbers


@dataclass
class Compared:
    """What disturbed runs wrote beside the undisturbed one.

    lines: how many can be compared; wrong: the scenario and the line in place of each line that has
    other numbers in a disturbed run; absent: the most lines that have none in place in a run. lost:
    what a run lacks of a file at its end; twice: what a file has too often; empty if nothing.
    unread: files that are no JSON.
    """

    lines: int
    wrong: dict[str, str]
    absent: int
    lost: str
    twice: str
    unread: list[str]


def compare(first: Tried, again: Tried, others: Sequence[Tried]) -> Compared | None:
    """Return how disturbed runs differ in their lines; None if no line can be compared.

    A line counts if a number of its place in the training, such as a step, and a fraction of
    FEWEST_DIGITS are those of the second undisturbed run, too; other numbers in it are left out,
    such as a time. Another run may lack a printed line, as where it was stopped, or where two ranks
    wrote into one line; it is wrong if it has another line in its place. A text may lack one line
    for each harm; a file of rows must have each of them once.
    """
    repeated, runs = _by_kind(again), {run.name: _by_kind(run) for run in others}
    wrong: dict[str, str] = {}
    number, absent, valued = 0, Counter[str](), set[str]()
    for kind, lines in _by_kind(first).items():
        keys, values = _columns(lines, repeated.get(kind, []))
        if not values:
            continue
        valued.add(kind)
        own, also = (_by_key(each, keys, values) for each in (lines, repeated[kind]))
        known = {key: own[key] for key in own if own[key].keys() == also[key].keys()}
        number += sum(map(len, known.values()))
        for name, kinds in runs.items():
            theirs = _by_key(kinds.get(kind, []), keys, values)
            wrong |= _wrong(name, known, theirs)
            absent[name] += sum(len(known[key]) for key in known.keys() - theirs.keys())
    rows = [_rows_off(run, first, again, valued) for run in others]
    rows += [(_lost(run, first, again), "") for run in others]
    lost, twice = (next((each[place] for each in rows if each[place]), "") for place in (0, 1))
    unread = [name for name, text in _texts(first) if text == UNREAD]
    found = Compared(number, wrong, max(absent.values(), default=0), lost, twice, unread)
    return found if number or lost or twice or unread else None


def _columns(
    lines: Sequence[MetricLine], twins: Sequence[MetricLine]
) -> tuple[list[int], list[int]]:
    """Return which numbers say where a line of this kind belongs, and which are compared."""
    keys, fractions, values = [], [], []
    for place in range(len(lines[0][1])):
        own, also = ({numbers[place] for _, numbers in some} for some in (lines, twins))
        if not all(map(_WHOLE.fullmatch, own)) and max(map(_digits, own)) >= FEWEST_DIGITS:
            fractions.append(place)
        elif own == also:
            keys.append(place)
    # Such as the part of an epoch, where lines name no step.
    keys = keys or [place for place in fractions if _is_rising(lines, place)][:1]
    for place in fractions if keys else ():
        pairs = [_by_key(each, keys, [place]) for each in (lines, twins)]
        both = {*pairs[0]} & {*pairs[1]}
        # One line of several may lack; a time is another one at each key.
        is_same = all(pairs[0][key].keys() & pairs[1][key].keys() for key in both)
        more = sum(max(_digits(value) - 2 for (value,) in pairs[0][key]) for key in both)
        if is_same and more >= FEWEST_MORE:
            values.append(place)
    return keys, values


def _is_rising(lines: Sequence[MetricLine], place: int) -> bool:
    """Return whether a number never falls from line to line, and is not always the same."""
    numbers = [float(found[place]) for _, found in lines]
    return numbers == sorted(numbers) and numbers[0] < numbers[-1]


def _digits(number: str) -> int:
    """Return how many significant digits a number has."""
    mantissa = number.lower().partition("e")[0]
    return len(re.sub(r"\D", "", mantissa).lstrip("0"))


def _by_key(
    lines: Iterable[MetricLine], keys: Sequence[int], values: Sequence[int]
) -> defaultdict[Numbers, dict[Numbers, str]]:
    """Return by their numbers at `keys` the texts of lines, by their numbers at `values`."""
    found = defaultdict[Numbers, dict[Numbers, str]](dict)
    for text, numbers in lines:
        key, value = (tuple(numbers[place] for place in each) for each in (keys, values))
        found[key].setdefault(value, text)
    return found


def _wrong(
    name: str,
    known: Mapping[Numbers, Mapping[Numbers, str]],
    theirs: Mapping[Numbers, Mapping[Numbers, str]],
) -> dict[str, str]:
    """Return the lines of the undisturbed run that a run has with other numbers."""
    wrong = {}
    for key in sorted(known.keys() & theirs.keys()):
        instead = theirs[key].keys() - known[key].keys()
        for value in sorted(known[key].keys() - theirs[key].keys()) if instead else ():
            line = known[key][value]
            wrong[line] = f"{name}: {theirs[key][min(instead)]} is not {line}"
    return wrong


def _rows_off(run: Tried, first: Tried, again: Tried, valued: set[str]) -> tuple[str, str]:
    """Return what a run lacks of the rows of a file, and what it has too often; or nothing.

    valued: the kinds of lines that have a number to compare.
    """
    lost = twice = ""
    for is_whole in (True, False):  # whole numbers may be times
        own, expected, also = (_rows(each, valued, is_whole) for each in (run, first, again))
        for name in expected.keys() & own.keys():
            if expected[name] != also.get(name):
                continue
            more, less = own[name] - expected[name], expected[name] - own[name]
            of = f"{run.name}: {name}"
            if less and not lost:
                lost = f"{of} lacks {quantity(less.total(), 'row')}, such as {min(less)}"
            if more and not twice:
                twice = f"{of} has {quantity(more.total(), 'row')} too many, such as {min(more)}"
        if lost or twice:
            break
    return lost, twice


def _rows(run: Tried, valued: set[str], is_whole: bool) -> dict[str, Counter[str]]:
    """Return how often each file of rows has each one, with only its whole numbers, or none."""
    found: dict[str, Counter[str]] = {}
    for file, text in _texts(run):
        lines = [*filter(None, map(str.strip, text.splitlines()))]
        kinds = [_kind(line) for line in lines]
        if not file.endswith(ROWS) or valued.isdisjoint(kinds):
            continue
        header = lines[0] if kinds[0] not in valued else None
        rows = (
            _FRACTION.sub("#", _CLOCK.sub("@", line)) if is_whole else kind
            for line, kind in zip(lines, kinds, strict=True)
            if kind in valued or line == header
        )
        found[file] = Counter(rows)
    return found


def _kind(line: str) -> str:
    """Return what a line has beside its numbers."""
    return _BAR.sub(" ", _NUMBER.sub("#", _CLOCK.sub("@", line)))


def _lost(run: Tried, first: Tried, again: Tried) -> str:
    """Return which file of a run lacks lines with numbers, but for one at each harm; or nothing."""
    own, expected, repeated = map(_in_files, (run, first, again))
    harms = len([start for start in run.starts if start.harmed_at is not None])
    for name, lines in expected.items():
        if lines == repeated[name] and own[name] + harms < lines:
            return f"{run.name}: {name} has {own[name]} of {lines} lines"
    return ""


def _in_files(run: Tried) -> Counter[str]:
    """Return how many lines have numbers, by the names of files without the numbers in them.

    A start may have a file, or a folder, of its own.
    """
    found = Counter[str]()
    for file, text in _texts(run):
        if file and not file.endswith(".json"):  # some have one in each of their checkpoints
            found[re.sub(r"\d+", "*", file)] += len(re.findall(r"\d.*", text))
    return found


def _by_kind(run: Tried) -> dict[str, list[MetricLine]]:
    """Return the lines of a run that have numbers, by what else is in them."""
    found = defaultdict(list)
    for _, text in _texts(run):
        for line in map(str.strip, text.splitlines()):
            numbers = tuple(_NUMBER.findall(_CLOCK.sub("@", line)))
            if len(numbers) > 1:
                found[_kind(line)].append((line, numbers))
    return found


def _texts(run: Tried) -> Iterator[tuple[str, str]]:
    """Yield what a run printed, and the name and the text of each file that it wrote."""
    for start in run.starts:
        yield "", start.output
    begun = min((process.t for process in run.processes), default=0.0)
    seen = set()  # a link may name a file again
    for path in sorted(run.home.rglob("*")):
        if path.suffix not in SUFFIXES or not path.is_file():
            continue
        status = path.stat()
        if status.st_mtime >= begun and status.st_ino not in seen:
            seen.add(status.st_ino)
            name = visible_name(str(path.relative_to(run.home)))
            text = path.read_text(encoding="utf-8", errors="replace")
            yield name, _history(text) if path.suffix == ".json" else text


def _history(text: str) -> str:
    """Return a line for each entry of the lists in JSON, with its place if it names none."""
    try:
        value = json.loads(text)
    except ValueError:
        return UNREAD
    return "\n".join(_entries("", value))


def _entries(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _entries(f"{key} {name}", each)
    for place, each in enumerate(value if isinstance(value, list) else ()):
        text = json.dumps(each)
        has_place = isinstance(each, dict) and any(type(part) is int for part in each.values())
        yield f"{key} {text}" if has_place else f"{key} {place} {text}"
