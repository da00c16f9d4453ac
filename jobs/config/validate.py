"""Checks a parsed document: returns its spec, or raises every problem with its place."""

import dataclasses
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from .. import hooks
from ..contract.problems import CONTROL, KeyPath, Problem, SpecError, dotted, format_value
from ..contract.spec import OF_TRAINER, SECTIONS, Slurm, Spec
from ..plugins import PLUGINS, missing
from ..slurm import duration
from . import resolve
from .keys import choices, fits, is_one_of, keys, nearest, type_at, type_name, unknown_key_hint
from .yaml_reader import Document, as_pair, scalar

_CONTROL = re.compile(f"[{CONTROL}]")
_TIME_HINT = 'write it in quotes as H:M:S or D-H:M:S, such as "04:00:00" for 4 hours'
# For each limit of a key in jobs.contract.spec: whether a value keeps it, and its words.
BOUNDS: dict[str, tuple[Callable[[Any, Any], object], str]] = {
    "ge": (operator.ge, "at least"),
    "gt": (operator.gt, "greater than"),
    "le": (operator.le, "at most"),
    "lt": (operator.lt, "less than"),
    "pattern": (lambda value, pattern: re.fullmatch(pattern, str(value)), ""),
}
_HINTS: dict[KeyPath, str] = {
    ("slurm", "nodes"): "write a number, or a range such as 6-8",
    ("slurm", "gpus_per_node"): "write a number, or a type and a number: 2 or a100:2",
    ("slurm", "mem"): 'write a unit, such as 64G; "{}" in quotes is MiB',
    ("dir_mode",): "write 0700, 0750 or 0755: only its owner writes a run; submit --from continues "
    "another user's",
}


def validate(document: Document) -> Spec:
    """Return the resolved spec of a document. Raises: SpecError with all problems."""
    report = _Report(document)
    report.values = resolve.without_empty(report.values)
    wrong_paths: list[Problem] = []
    report.values = resolve.expand(report.values, wrong_paths)
    report.add(wrong_paths)
    report.add(_texts(report.values, ()))
    report.add(_time(report.values, document))
    report.add(_unread(report.values), document.known)
    report.add(_wrong_types(report.values, document))
    report.add(_missing_plugins(report.values))
    spec = _spec(report.values)
    report.add(hooks.problems(spec), document.known)
    if report.problems:
        raise SpecError(report.problems)
    return resolve.canonical(spec)


class _Report:
    """The problems so far, one at most for a key, and the values without the wrong keys."""

    def __init__(self, document: Document) -> None:
        self.document = document
        # An override with such a problem was not merged: it counts.
        self.problems = [
            p for p in document.problems if p not in document.known or p.place.order[0]
        ]
        self.values: dict[str, Any] = document.values
        self._wrong = {problem.path for problem in self.problems if problem.path}
        for path in self._wrong:
            self.values = resolve.without_key(self.values, path)

    def add(self, problems: Iterable[Problem], known: Sequence[Problem] = ()) -> None:
        for problem in list(problems):
            spots = (problem.path, *problem.also)
            if self._wrong.isdisjoint(spots):
                nodes = self.document.nodes
                written = next((at for at in spots if at in nodes), problem.path)
                placed = dataclasses.replace(problem, place=self.document.place(written))
                if placed not in known:
                    self.problems.append(placed)
                    self._wrong.add(problem.path)
                    self.values = resolve.without_key(self.values, problem.path)


def _missing_plugins(values: dict[str, Any]) -> Iterator[Problem]:
    """Yield the keys whose plugin this copy of the kit does not have."""
    for path, value in _written_keys(values):
        plugin, is_own = keys()[path].plugin, isinstance(value, str) and ":" in value
        if isinstance(plugin, dict):
            of_value = (name for text, name in plugin.items() if re.fullmatch(text, str(value)))
            plugin = next(of_value, "")
        if plugin and plugin not in PLUGINS and value != keys()[path].default and not is_own:
            yield Problem(path, missing(plugin), "leave it out, or add the folder of the plugin")


def _unread(values: dict[str, Any]) -> Iterator[Problem]:
    """Yield each key of the trainer that is written beside a program in the trainer's place."""
    launch = values["launch"] if isinstance(values.get("launch"), dict) else {}
    own = next((name for name in ("script", "module") if launch.get(name) is not None), None)
    for path, _ in _written_keys(values) if own else ():
        # By checkpoint.best and best_mode the command report ranks the runs of any program.
        if dotted(path).startswith(OF_TRAINER) and not dotted(path).startswith("checkpoint.best"):
            what = f"nothing reads it: launch.{own} runs in place of the kit's trainer"
            yield Problem(path, what, "leave it out; your program gets launch.args and launch.env")


def _texts(value: Any, path: KeyPath) -> Iterator[Problem]:
    """Yield the texts with characters that get lost, and the numbers that are none."""
    if isinstance(value, dict):
        for name, item in value.items():
            if wrong := _wrong_in(name):
                yield Problem((*path, name), f"the key {wrong}", "leave it out")
            yield from _texts(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, (*path, index))
    elif isinstance(value, float) and not math.isfinite(value):
        yield Problem(path, f"must be a finite number, not {value}")
    elif isinstance(value, str):
        is_line = path[0] == "setup"
        if wrong := _wrong_in(value, allows_tab=is_line):
            hint = "write one list item per line" if is_line else "leave it out"
            yield Problem(path, f"{format_value(value)} {wrong}", hint)


def _wrong_in(text: str, allows_tab: bool = False) -> str | None:
    """Return why sbatch or a shell cannot get this text unchanged; None if it can."""
    if "\n" in text or "\r" in text:
        return "has a line break in it"
    wrong = _CONTROL.search(text.replace("\t", "") if allows_tab else text)
    return f"has the character U+{ord(wrong[0]):04X} in it" if wrong else None


def _time(values: dict[str, Any], document: Document) -> Iterator[Problem]:
    """Refuse a number or M:S without quotes: Slurm takes it for minutes, few users mean minutes."""
    slurm, path = values.get("slurm"), ("slurm", "time")
    value = slurm.get("time") if isinstance(slurm, dict) else None
    written = document.nodes[path].written if path in document.nodes else None
    if written is not None and (misread := duration.misreading(written)):
        yield Problem(path, *misread)
    elif isinstance(value, str):
        try:
            duration.parse(value)
        except ValueError as error:
            yield Problem(path, f"{format_value(value)} {error}", _TIME_HINT)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield Problem(path, f"{format_value(value, written)} is not a time", _TIME_HINT)


def _wrong_types(values: dict[str, Any], document: Document) -> Iterator[Problem]:
    """Yield a problem for each unknown key and each value outside of its key's type or limits."""
    for path, value in _written_keys(values):
        key = keys().get(path)
        if key is None and not (len(path) == 1 and path[0] in SECTIONS):
            yield Problem(path, "unknown key", _of_sbatch(path, value) or unknown_key_hint(path))
            continue
        wrong = dict(_misfits(path, value))
        for part, misfit in wrong.items():
            written = document.nodes[part].written if part in document.nodes else None
            what = f"must be {type_name(type_at(part))}, not {format_value(misfit, written)}"
            yield Problem(part, what, _type_hint(part, misfit, written))
        if key is None or wrong or value is None:
            continue
        for name, limit in key.limits.items():
            keeps, words = BOUNDS[name]
            if value not in (options := choices(key.type)) and not keeps(value, limit):
                must = ", or ".join([f"must be {words} {limit}", *options])
                what = "cannot be" if name == "pattern" else f"{must}, not"  # _HINTS has no regex
                yield Problem(path, f"{what} {format_value(value)}", _HINTS.get(path, ""))


def _of_sbatch(path: KeyPath, value: Any) -> str:
    """Return what to write in place of an sbatch option that the kit sets; "" for other keys."""
    if path[0] != "slurm" or len(path) < 2:
        return ""
    option = Spec(slurm=Slurm(sbatch_args={str(path[1]): value}))
    return next((p.hint for p in hooks.problems(option) if p.path[1:2] == ("sbatch_args",)), "")


def _written_keys(values: dict[str, Any]) -> Iterator[tuple[KeyPath, Any]]:
    """Yield path and value of each key, and of each section that is no mapping."""
    for name, value in values.items():
        if name in SECTIONS and isinstance(value, dict):
            yield from (((name, inner), item) for inner, item in value.items())
        else:
            yield (name,), value


def _misfits(path: KeyPath, value: Any) -> Iterator[tuple[KeyPath, Any]]:
    """Yield path and value of each part of a value that has another type than its key wants."""
    wanted = type_at(path)
    if isinstance(value, list) and is_one_of(list, wanted):
        for index, item in enumerate(value):
            yield from _misfits((*path, index), item)
    elif isinstance(value, dict) and is_one_of(dict, wanted):
        for name, item in value.items():
            yield from _misfits((*path, name), item)
    elif not fits(value, wanted):
        yield path, value


def _spec(values: dict[str, Any]) -> Spec:
    """Return the spec of values that have the types of their keys; 1 becomes 1.0 for a number."""
    made: dict[str, Any] = {}
    for path, value in _written_keys(values):
        is_number = is_one_of(float, keys()[path].type) and value is not None
        section = made.setdefault(str(path[0]), {}) if len(path) > 1 else made
        section[str(path[-1])] = float(value) if is_number else value
    return Spec(
        **{name: SECTIONS[name](**v) if name in SECTIONS else v for name, v in made.items()}
    )


def _type_hint(path: KeyPath, value: Any, written: str | None) -> str:
    """Return how to write a value of the wrong type; empty if the problem itself shows it."""
    wanted = type_at(path)
    if path in _HINTS:
        return _HINTS[path].format(written)
    if is_one_of(str, wanted) and isinstance(value, (bool, int, float)):
        return f'quote it: "{format_value(value, written)}"'
    if is_one_of(str, wanted) and isinstance(value, dict):
        return "quote text that has a colon in it"
    if is_one_of(list, wanted):
        words = value.split() if isinstance(value, str) else ["a", "b"]
        return f"write a list, such as [{', '.join(words)}]"
    if is_one_of(dict, wanted):
        return f"write {as_pair(str(value)) or 'a mapping, such as {a: 1, b: 2}'}"
    if isinstance(value, str) and len(value) < 16 and fits(scalar(value.replace(",", ".")), wanted):
        return f"write {value.replace(',', '.')}, without quotes"
    guess = nearest(value, choices(wanted)) if isinstance(value, str) else None
    return f"did you mean {guess}?" if guess else ""
