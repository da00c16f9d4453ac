"""A parsed document -> a valid, resolved Spec, with each problem at its place in the document."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import re
from collections.abc import Iterator
from typing import Any

import pydantic

from jobs.config import check_launch, check_train
from jobs.config.keys import (
    RENAMED,
    in_words,
    keys,
    nearest,
    sections,
    type_at,
    unknown_key_hint,
)
from jobs.config.yaml_reader import Document
from jobs.problems import KeyPath, Problem, dotted, shown
from jobs.slurm import duration
from jobs.spec import Spec

_TIME: KeyPath = ("slurm", "time")
_EXTRA: KeyPath = ("slurm", "sbatch_args")
_EXTRA_TIMES = ("time-min", "delay-boot")  # bare numbers are minutes here, too
_TIME_HINT = 'write it in quotes as H:M:S or D-H:M:S, such as "04:00:00" for 4 hours'
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", re.ASCII)
_BOUNDS = {
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be greater than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "finite_number": "must be a finite number",
    "string_pattern_mismatch": "must match {pattern}",
}
_HINTS: dict[KeyPath, str] = {
    ("slurm", "mem"): 'write a unit, such as 64G; "{}" in quotes is MiB',
    ("dir_mode",): 'quote the octal digits: "0700"',
}


@functools.lru_cache(maxsize=1)
def adapter() -> pydantic.TypeAdapter[Spec]:
    """pydantic's view of the spec."""
    return pydantic.TypeAdapter(Spec)


def validate(document: Document) -> Spec | None:
    """The spec that the document states. What is wrong with it is added to its problems."""
    report = _Report(document)
    _drop_empty(document.values)
    report.add(_values(document))
    spec = _typed(document, report)
    if spec is not None:
        report.add(check_launch.check(spec))
        report.add(check_train.check(spec))
    return None if spec is None or document.problems else _resolved(spec)


class _Report:
    """Adds findings to the document; a key that is wrong already is left out of what follows."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._wrong = {problem.path for problem in document.problems if problem.path}
        for path in self._wrong:
            _prune(document.values, path)

    def add(self, findings: Iterator[Problem]) -> None:
        for finding in list(findings):
            if self._wrong.isdisjoint({finding.path, *finding.also}):
                spots = (finding.path, *finding.also)
                written = next((at for at in spots if at in self._document.nodes), finding.path)
                place = self._document.place(written)
                self._document.problems.append(dataclasses.replace(finding, place=place))
                self._wrong.add(finding.path)
                _prune(self._document.values, finding.path)


def _prune(values: Any, path: KeyPath) -> None:
    """Remove a key; a list goes as a whole, so that its other indices stay right."""
    for depth, name in enumerate(path):
        inner = values.get(name) if isinstance(values, dict) else None
        if depth == len(path) - 1 or not isinstance(inner, dict):
            if isinstance(values, dict):
                values.pop(name, None)
            return
        values = inner


def _drop_empty(values: dict[str, Any]) -> None:
    """A section, list or mapping without entries (all commented out) is as if it were not there."""
    collections = {key.path for key in keys().values() if isinstance(key.default, (dict, list))}
    for path in [*collections, *((name,) for name in sections() if name)]:
        around = values if len(path) == 1 else values.get(str(path[0]))
        if isinstance(around, dict) and around.get(str(path[-1]), ...) is None:
            del around[str(path[-1])]


def _values(document: Document) -> Iterator[Problem]:
    """What is wrong with values before their types matter."""
    values = document.values
    yield from _path((), "runs_root", values)
    yield from _path(("train",), "init_from", values.get("train"))
    yield from _init_from(values.get("train"))
    yield from _texts(values, ())
    slurm = values.get("slurm")
    if isinstance(slurm, dict):
        if "time" in slurm:
            yield from _time(document, _TIME, slurm["time"])
        if isinstance(slurm.get("sbatch_args"), dict):
            yield from _extra(document, slurm["sbatch_args"])


def _path(above: KeyPath, name: str, values: Any) -> Iterator[Problem]:
    """`~` and `$VARIABLE` are expanded as a shell would; every other `$` stays as it is."""
    written = values.get(name) if isinstance(values, dict) else None
    try:
        if isinstance(written, str):
            values[name] = _VARIABLE.sub(
                lambda match: os.environ[match[1] or match[2]], os.path.expanduser(written)
            )
    except KeyError as error:
        what = f"the environment variable {error.args[0]} is not set"
        yield Problem((*above, name), what, "set it, or write the path out")


def _init_from(train: Any) -> Iterator[Problem]:
    """A relative path is taken from here, links resolved: a run named alike moves its `latest`.

    Of an absolute one this machine need not see anything.
    """
    written = train.get("init_from") if isinstance(train, dict) else None
    if not isinstance(written, str) or not written or os.path.isabs(written):
        return
    path = os.path.abspath(written)
    if os.path.exists(path):
        train["init_from"] = os.path.realpath(path)
    else:
        hint = "a relative path begins where you submit; a run by name is runs/NAME/latest"
        yield Problem(("train", "init_from"), f"there is no {path}", hint)


def _texts(value: Any, path: KeyPath) -> Iterator[Problem]:
    if isinstance(value, dict):
        for name, item in value.items():
            if wrong := check_launch.text_problem(name):
                yield Problem((*path, name), f"the key {wrong}", "leave it out")
            yield from _texts(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, (*path, index))
    elif isinstance(value, float) and not math.isfinite(value):
        yield Problem(path, "must be a finite number", "")
    elif isinstance(value, str):
        is_line = path[0] == "setup"
        if wrong := check_launch.text_problem(value, is_tab_fine=is_line):
            hint = "write one list item per line" if is_line else "leave it out"
            yield Problem(path, f"{shown(value)} {wrong}", hint)


def _time(document: Document, path: KeyPath, value: Any) -> Iterator[Problem]:
    """A number or M:S without quotes is refused, because few mean minutes by it."""
    written = document.nodes[path].written if path in document.nodes else None
    if written is not None and (misread := duration.misreading(written)):
        yield Problem(path, *misread)
    elif isinstance(value, str):
        try:
            duration.parse(value)
        except ValueError as error:
            yield Problem(path, f"{shown(value)} {error}", _TIME_HINT)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield Problem(path, f"{shown(value, written)} is no time", _TIME_HINT)


def _extra(document: Document, extra: dict[str, Any]) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for name, value in extra.items():
        option, path = name.replace("_", "-"), (*_EXTRA, name)
        if option in seen:
            yield Problem(path, f"is the same option as {seen[option]}", "keep one of them")
        seen[option] = name
        if option in _EXTRA_TIMES:
            yield from _time(document, path, value)


def _typed(document: Document, report: _Report) -> Spec | None:
    """The values in their types; a second look without the wrong keys lets the checks run."""
    for _ in range(2):
        try:
            return adapter().validate_json(json.dumps(document.values))
        except pydantic.ValidationError as error:
            report.add(_findings(error, document))
    return None


def _findings(error: pydantic.ValidationError, document: Document) -> Iterator[Problem]:
    """One finding for each key; pydantic has one for each branch of a union."""
    found: dict[KeyPath, Problem] = {}
    for line in error.errors(include_url=False):
        path: KeyPath = line["loc"]
        while path and path not in document.nodes:
            path = path[:-1]
        written = document.nodes[path].written if path in document.nodes else None
        found.setdefault(path, _finding(path, line, written))
    yield from found.values()


def _finding(path: KeyPath, line: Any, written: str | None) -> Problem:
    kind, value = line["type"], line["input"]
    if kind == "unexpected_keyword_argument":
        if (renamed := RENAMED.get(dotted(path))) is not None:
            return Problem(path, f"is now {renamed}", f"write {renamed}")
        return Problem(path, "unknown key", unknown_key_hint(path))
    if kind in _BOUNDS:
        limits = {name: _short(limit) for name, limit in line.get("ctx", {}).items()}
        wanted = _BOUNDS[kind].format(**limits)
        return Problem(path, f"{wanted}, not {shown(value)}", _HINTS.get(path, ""))
    wanted = in_words(type_at(path))
    what = f"must be {wanted}, not {shown(value, written)}"
    return Problem(path, what, _type_hint(path, wanted, value, written))


def _short(limit: Any) -> Any:
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def _type_hint(path: KeyPath, wanted: str, value: Any, written: str | None) -> str:
    if path in _HINTS:
        return _HINTS[path].format(written)
    if wanted.startswith("text") and isinstance(value, (bool, int, float)):
        return f'quote it: "{shown(value, written)}"'
    if wanted.startswith("text") and isinstance(value, dict):
        return 'quote the whole text: ": " makes a mapping of it'
    if wanted.startswith("a list") and isinstance(value, (str, int, float)):
        return f"write [{shown(value, written)}]"
    if wanted.startswith("a whole number") and isinstance(value, str) and value.isdigit():
        return f"write {value} without quotes"
    choices = wanted.split(" or ")
    if value is False and "off" in choices:
        return "write off"
    if isinstance(value, str) and (guess := nearest(value, choices)):
        return f"did you mean {guess}?"
    if wanted.startswith("true or false") and isinstance(value, str):
        return "YAML 1.2 knows true and false; yes, no, on and off are text"
    return ""


def _resolved(spec: Spec) -> Spec:
    """The spec as it is frozen: times in canonical form, sbatch's options in sbatch's spelling."""
    slurm = spec.slurm
    sbatch_args = {}
    for name, value in slurm.sbatch_args.items():
        option = name.replace("_", "-")
        is_time = option in _EXTRA_TIMES and isinstance(value, str)
        if value is not False:
            sbatch_args[option] = _canonical(str(value)) if is_time else value
    return dataclasses.replace(
        spec, slurm=dataclasses.replace(slurm, time=_canonical(slurm.time), sbatch_args=sbatch_args)
    )


def _canonical(text: str) -> str:
    return duration.canonical(duration.parse(text))
