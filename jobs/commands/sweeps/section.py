"""Reads which points a sweep has: the section `sweep` of a file, and lists on the command line."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...config import overrides, yaml_reader
from ...config.keys import nearest
from ...config.load import SWEEP
from ...config.overrides import Override
from ...config.yaml_reader import Document
from ...problems import KeyPath, Problem, format_value
from . import draws

KINDS = ("grid", "list", "random")
KEYS = (*KINDS, "max_parallel", "metric")
RANDOM_KEYS = ("num_points", "seed", "keys")
MAX_POINTS = 1000  # Slurm's default MaxArraySize is 1001. Source: slurm.conf(5)
# The sweep lies in the folder of one name.
FIXED = ("name", "runs_root", SWEEP)
_SAME = "{} is the same for all points of a sweep"
_GRID_HINT = "write a list of values: train.lr: [0.01, 0.1]"
_PLAIN = re.compile(r"[A-Za-z][\w./+-]*(:[\w./+-]+)*", re.ASCII)

Values = tuple[Override, ...]  # of one point: the keys by which it differs


@dataclass(frozen=True)
class Section:
    """The points of a sweep, unchecked, and how it is run."""

    points: Sequence[Values]
    max_parallel: int | None = None
    metric: str | None = None


@dataclass(frozen=True)
class Arguments:
    """The `KEY=VALUE` of the command line: those of all points, and lists of values by key."""

    fixed: tuple[str, ...]
    axes: dict[KeyPath, list[Override]]
    problems: tuple[Problem, ...]


def split(arguments: Sequence[str]) -> Arguments:
    """Divide the arguments: `train.lr=0.01,0.1` lists values, `launch.args=[a,b]` is one value."""
    fixed: list[str] = []
    axes: dict[KeyPath, list[Override]] = {}
    problems: list[Problem] = []
    for number, argument in enumerate(arguments):
        name, _, written = argument.partition("=")
        path: KeyPath = tuple(name.split("."))
        axes.pop(path, None)  # the last of two equal keys wins
        texts = _parts(written)
        if len(texts) == 1 or path[0] == SWEEP:
            fixed.append(argument)
            continue
        fixed = [each for each in fixed if each.partition("=")[0] != name]
        parsed = [overrides.parse(f"{name}={text}", number) for text in texts]
        wrong = [each for each in parsed if isinstance(each, Problem)]
        whole = overrides.parse(argument, number)
        at = whole.place if isinstance(whole, Problem) else whole.document.nodes[path].place
        if "" in texts:
            hint = f"{name}=null is no value; quote a text that has a comma"
            wrong.append(Problem(path, "has nothing between two commas", hint, place=at))
        if path[0] in FIXED:
            wrong.append(Problem(path, _SAME.format(path[0]), "write one value", place=at))
        problems += wrong
        axes[path] = [each for each in parsed if isinstance(each, Override)]
    return Arguments(tuple(fixed), axes, tuple(problems))


def _parts(written: str) -> list[str]:
    """Return the texts between commas outside of brackets and quotes, without outer spaces."""
    parts, depth, quote = [""], 0, ""
    for char in written:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        else:
            depth += (char in "[{") - (char in "]}")
        if char == "," and not quote and depth <= 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def read(document: Document, arguments: Arguments) -> Section:
    """Take the section out of the document; its mistakes become problems of the document."""
    reader = _Reader(document, document.values.pop(SWEEP, None))
    document.problems += arguments.problems
    points = reader.points(arguments)
    if not reader.is_wrong and not points:
        hint = "write the values after commas, as in train.lr=0.01,0.1, or a section sweep"
        reader.refuse((), "has no points", hint)
    return Section(points, reader.limit(), reader.metric())


class _Reader:
    """Reads the parts of the section."""

    def __init__(self, document: Document, written: Any) -> None:
        self.is_wrong = False
        self._document = document
        self._section: dict[str, Any] = {}
        if isinstance(written, dict):
            self._section = written
        elif written is not None:
            self.refuse((), "must be a mapping with grid, list or random", _GRID_HINT)
        self._known(self._section, KEYS, ())

    def refuse(self, path: KeyPath, what: str, hint: str = "") -> None:
        """Add a problem with a key of the section."""
        self.is_wrong, full = True, (SWEEP, *path)
        place = self._document.place(full)
        self._document.problems.append(Problem(full, what, hint, place=place))

    def points(self, arguments: Arguments) -> list[Values]:
        """Return the values of each point: those of the section times those of the command line."""
        kinds = [kind for kind in KINDS if kind in self._section]
        if len(kinds) > 1:
            self.refuse((kinds[1],), f"stands beside {kinds[0]}", "keep one of them")
            return []
        fixed: set[KeyPath] = {tuple(each.partition("=")[0].split(".")) for each in arguments.fixed}
        own: list[Values] = [()]
        if kinds:
            own = self._of_kind(kinds[0], fixed | set(arguments.axes))
        count = len(own) * math.prod(map(len, arguments.axes.values()))
        if count > MAX_POINTS:
            self._refuse_many(count)
            return []
        lines = itertools.product(own, itertools.product(*arguments.axes.values()))
        points = [(*first, *others) for first, others in lines]
        return [] if points == [()] else points

    def _of_kind(self, kind: str, given: set[KeyPath]) -> list[Values]:
        """Return the section's points; `given`: command-line keys, which replace those here."""
        if kind == "list":
            return self._listed(given)
        axes = self._grid() if kind == "grid" else self._random()
        axes = {path: values for path, values in axes.items() if path not in given}
        if kind == "random":
            return list(zip(*axes.values(), strict=True)) if axes else [()]
        if (count := math.prod(map(len, axes.values()))) > MAX_POINTS:
            self._refuse_many(count)
            return []
        return list(itertools.product(*axes.values()))

    def _grid(self) -> dict[KeyPath, list[Override]]:
        axes = {}
        for key, values in self._mapping(("grid",)):
            if not isinstance(values, list) or not values:
                self.refuse(("grid", key), "needs a list of values", _GRID_HINT)
            elif path := self._path(key, ("grid", key)):
                axes[path] = [
                    self._value(path, value, ("grid", key, number))
                    for number, value in enumerate(values)
                ]
        return axes

    def _listed(self, given: set[KeyPath]) -> list[Values]:
        lines = self._section["list"]
        if not isinstance(lines, list) or not lines:
            hint = "write list: [{train.lr: 0.1, train.momentum: 0.9}, {train.lr: 0.01}]"
            self.refuse(("list",), "needs a list of mappings", hint)
            return []
        points = []
        for number, line in enumerate(lines):
            point_list = []
            for key, value in self._mapping(("list", number), line):
                path = self._path(key, ("list", number, key))
                if path and path not in given:
                    point_list.append(self._value(path, value, ("list", number, key)))
            points.append(tuple(point_list))
        return points

    def _random(self) -> dict[KeyPath, list[Override]]:
        written = self._section["random"]
        if not isinstance(written, dict):
            hint = "write random: {num_points: 20, keys: {train.lr: {log_uniform: [1e-4, 0.1]}}}"
            self.refuse(("random",), "needs num_points and keys", hint)
            return {}
        self._known(written, RANDOM_KEYS, ("random",))
        count = self._number(written.get("num_points"), ("random", "num_points"), 1)
        seed = self._number(written.get("seed", 0), ("random", "seed"), 0)
        if count is not None and count > MAX_POINTS:
            self.refuse(("random", "num_points"), f"must be at most {MAX_POINTS}, not {count}")
            count = None
        axes = {}
        for key, value in self._mapping(("random", "keys"), written.get("keys")):
            at, path = ("random", "keys", key), self._path(key, ("random", "keys", key))
            try:
                distribution = draws.distribution(value)
            except draws.DrawError as error:
                self.refuse(at, str(error))
                continue
            if path and count is not None and seed is not None:
                drawn = itertools.islice(draws.draw(distribution, seed, key), count)
                axes[path] = [self._value(path, each, at) for each in drawn]
        return axes

    def limit(self) -> int | None:
        """Return how many points may run at a time; None: all."""
        written = self._section.get("max_parallel")
        return None if written is None else self._number(written, ("max_parallel",), 1)

    def metric(self) -> str | None:
        """Return the metric that ranks the points."""
        written = self._section.get("metric")
        if written is not None and not (isinstance(written, str) and written.startswith("eval_")):
            what = f"{format_value(written)} is no held-out metric"
            self.refuse(("metric",), what, "write its name, such as eval_accuracy or eval_loss")
            return None
        return written

    def _mapping(self, at: KeyPath, written: Any = None) -> Iterator[tuple[str, Any]]:
        """Yield the keys of a part with their values; a problem if it has none."""
        mapping = self._section[str(at[0])] if len(at) == 1 else written
        if isinstance(mapping, dict) and mapping:
            yield from mapping.items()
        else:
            self.refuse(at, "needs keys of the spec", "write keys with dots, such as train.lr")

    def _path(self, key: str, at: KeyPath) -> KeyPath | None:
        """Return the key of the spec that `key` names."""
        path = tuple(key.split("."))
        if not all(path):
            self.refuse(at, "is no key of the spec", "write keys with dots, such as train.lr")
        elif path[0] in FIXED:
            self.refuse(at, _SAME.format(path[0]), "write it outside of the section sweep")
        else:
            return path
        return None

    def _value(self, path: KeyPath, value: Any, at: KeyPath) -> Override:
        """Return the value of a key of one point, with its place in the file.

        at: where the value stands in the section.
        """
        full, known = (SWEEP, *at), self._document.nodes
        nodes = {path: known[full]}
        if isinstance(value, (list, dict)) and at[0] != "random":
            inner = [each for each in known if each[: len(full)] == full]
            nodes = {path + each[len(full) :]: known[each] for each in inner}
        override = Override(path, Document(overrides.as_written(value, path, nodes), nodes))
        if problem := unwritable(override):
            self.refuse(at, problem)
        return override

    def _number(self, written: Any, at: KeyPath, least: int) -> int | None:
        if type(written) is int and written >= least:
            return written
        self.refuse(at, f"must be a whole number, at least {least}")
        return None

    def _known(self, written: dict[str, Any], known: Sequence[str], at: KeyPath) -> None:
        for name in written:
            if name not in known:
                guess = nearest(name, known)
                hint = f"did you mean {guess}?" if guess else f"known: {', '.join(known)}"
                self.refuse((*at, name), "unknown key", hint)

    def _refuse_many(self, count: int) -> None:
        hint = "random with num_points takes some of them"
        self.refuse((), f"has {count} points, more than {MAX_POINTS}", hint)


def argument(override: Override) -> str:
    """Return the override as `KEY=VALUE`, from which the same value is read again."""
    value = override.document.values
    is_plain = isinstance(value, str) and _PLAIN.fullmatch(value) and _stays(value)
    text = value if is_plain else json.dumps(value, ensure_ascii=False)
    return f"{'.'.join(map(str, override.path))}={text}"


def _stays(text: str) -> bool:
    """Return whether YAML reads this text without quotes as text."""
    return bool(yaml_reader.scalar(text) == text)


def unwritable(override: Override) -> str:
    """Return why the override cannot be frozen as `KEY=VALUE`; empty if it can."""
    again = overrides.parse(argument(override), 0)
    if isinstance(again, Problem):
        return again.what
    is_same = (again.path, again.document.values) == (override.path, override.document.values)
    return "" if is_same else "cannot be written as KEY=VALUE"
