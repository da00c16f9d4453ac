"""The points of a sweep: the section `sweep` of a file, and lists of values on the command line."""

import copy
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...base import installation
from ...config import overrides, yaml_reader
from ...config.keys import as_whole
from ...config.load import SWEEP, read, resolve_document
from ...config.loaded import LoadedSpec
from ...config.yaml_reader import Document, YamlNode
from ...contract.problems import KeyPath, Place, Problem, SpecError, format_value
from ...contract.spec import METRIC_MODES, SECTIONS

KEYS = ("grid", "list", "max_parallel", "metric")
MAX_POINTS = 1000  # Slurm's default MaxArraySize is 1001. Source: slurm.conf(5)
_SHAPE = "write grid: {train.lr: [0.01, 0.1]}, or list: [{train.lr: 0.1}, {train.lr: 0.01}]"


@dataclass(frozen=True)
class Point:
    """A point of a sweep. overrides: the `KEY=VALUE` by which it differs from the user's spec."""

    overrides: tuple[str, ...]
    loaded: LoadedSpec


@dataclass(frozen=True)
class LoadedSweep:
    """The points of a sweep. max_parallel: how many may run at a time; None: all."""

    points: tuple[Point, ...]
    max_parallel: int | None
    metric: str | None


def load(config: Path, arguments: Sequence[str], typed: str = "") -> LoadedSweep:
    """Return the points of a YAML file with `KEY=VALUE` and `KEY=V1,V2` of the command line.

    Lists of the command line multiply the points of the section, and replace its keys. typed: the
    text in place of the file.
    Raises: SpecError; its text lists the mistakes of the section and of every point.
    """
    fixed, axes = split(arguments)
    text, document = read(config, fixed, typed)
    section = document.values.pop(SWEEP, None)
    document.nodes.setdefault((SWEEP,), YamlNode(Place(str(config))))
    own = _Section(document, {} if section is None else section)
    points = own.points({word.partition("=")[0] for word in fixed} | {*axes})
    listed = [
        [own.word(name, value, each, (n,)) for n, value in enumerate(each.values)]
        for name, each in axes.items()
    ]
    lines = [(*a, *b) for a in points for b in itertools.product(*listed)] or [()]
    if lines == [()] and not document.problems:
        is_own = document.nodes.keys() & {("launch", "script"), ("launch", "module")}
        example = installation.override("launch.env.LR=0.01,0.1" if is_own else "train.lr=0.01,0.1")
        add = f"add {example}, or a section sweep to the file"
        own.refuse((), "has no points", add if section is None else _SHAPE)
    if len(lines) > MAX_POINTS:
        own.refuse((), f"has {len(lines)} points, more than {MAX_POINTS}", "sweep fewer values")
        lines = lines[:1]
    fixed = [word for word in fixed if not word.startswith(f"{SWEEP}.")]
    problems: dict[Problem, None] = {}
    made = []
    for words in lines:
        each = Document(copy.deepcopy(document.values), {**document.nodes}, [*document.problems])
        overrides.apply(each, words)
        try:
            made.append(Point(words, resolve_document(text, each, [*fixed, *words])))
        except SpecError as error:
            for problem in error.problems:
                place = own.places.get(problem.place.where, problem.place)
                problems[replace(problem, place=place)] = None
    if len({(each.loaded.spec.name, each.loaded.spec.runs_root) for each in made}) > 1:
        own.refuse((), "changes name or runs_root, which all points share", "leave it out")
    problems |= dict.fromkeys(document.problems)
    if problems:
        raise SpecError(problems)
    return LoadedSweep(tuple(made), own.max_parallel, own.metric)


def split(arguments: Sequence[str]) -> tuple[list[str], dict[str, Document]]:
    """Divide the arguments: `train.lr=0.01,0.1` lists values, `launch.args=[a,b]` is one value."""
    fixed: list[str] = []
    axes: dict[str, Document] = {}
    for argument in arguments:
        name = argument.partition("=")[0]
        axes.pop(name, None)  # the last of two equal keys wins
        listed = _values(argument, len(fixed))
        if listed.problems or len(listed.values) < 2 or name.startswith(f"{SWEEP}."):
            fixed.append(argument)
        else:
            fixed = [each for each in fixed if each.partition("=")[0] != name]
            axes[name] = listed
    return fixed, axes


def _values(argument: str, number: int) -> Document:
    place = Place(f"override {argument[:100]}", (1, number))
    return yaml_reader.parse(f"[{argument.partition('=')[2]}]", lambda _: place)


class _Section:
    """The section of a file; its mistakes become problems of the document."""

    def __init__(self, document: Document, written: Any) -> None:
        self.places: dict[str, Place] = {}  # of the points' words, by their place as overrides
        self._document = document
        self._section: dict[str, Any] = written if isinstance(written, dict) else {}
        if self._section is not written:
            self.refuse((), "must be a mapping with grid or list", _SHAPE)
        for name in self._section:
            if name not in KEYS:
                self.refuse((name,), "unknown key", f"{_SHAPE}; or max_parallel, metric")
        limit = self.max_parallel = as_whole(self._section.get("max_parallel"), int)
        if limit is not None and not (type(limit) is int and limit > 0):
            self.refuse(("max_parallel",), f"must be a number from 1 on, not {format_value(limit)}")
        self.metric = self._section.get("metric")
        if self.metric is not None and self.metric not in METRIC_MODES:
            checkpoint = document.values.get("checkpoint")
            best_mode = isinstance(checkpoint, dict) and checkpoint.get("best_mode", "auto")
            if best_mode in (False, "auto") or not str(self.metric).startswith("eval_"):
                hint = f"built in: {', '.join(METRIC_MODES)}; of your own: eval_..., with best_mode"
                self.refuse(("metric",), f"{self.metric} is no held-out metric", hint)

    def refuse(self, path: KeyPath, what: str, hint: str = "") -> None:
        full = (SWEEP, *path)
        self._document.problems.append(Problem(full, what, hint, place=self._document.place(full)))

    def points(self, given: set[str]) -> list[tuple[str, ...]]:
        """Return the `KEY=VALUE` of each point; given: keys of the command line."""
        grid, lines = self._section.get("grid", {}), self._section.get("list", [{}])
        if "grid" in self._section and "list" in self._section:
            self.refuse(("list",), "stands beside grid", "keep one of them")
        if not isinstance(grid, dict):
            self.refuse(("grid",), "must be a mapping", _SHAPE)
            return [()]
        if not isinstance(lines, list) or not all(isinstance(line, dict) for line in lines):
            self.refuse(("list",), "must be a list of mappings", _SHAPE)
            return [()]
        axes, source = [], self._document
        for key, values in grid.items():
            at = (SWEEP, "grid", key)
            if not isinstance(values, list) or not values:
                self.refuse(at[1:], "needs a list of values", _SHAPE)
            elif key not in given:
                axes.append([self.word(key, v, source, (*at, n)) for n, v in enumerate(values)])
        rows = []
        for n, line in enumerate(lines):
            own = [(key, value) for key, value in line.items() if key not in given]
            rows.append([self.word(k, v, source, (SWEEP, "list", n, k)) for k, v in own])
        return [(*point, *row) for point in itertools.product(*axes) for row in rows]

    def word(self, key: str, value: Any, source: Document, at: KeyPath) -> str:
        """Return `KEY=VALUE` of the value at a place of a document, as its key takes it."""
        if key in SECTIONS:
            self.refuse(at[1:], "is a section, of which a point would keep nothing else", _SHAPE)
        path, inner = tuple(key.split(".")), source.nodes.items()
        nodes = {path + x[len(at) :]: node for x, node in inner if x[: len(at)] == at}
        value = overrides.typed(value, path, nodes, is_override=True)
        word = f"{key}={json.dumps(value, ensure_ascii=False)}"
        if key == "slurm.time" and path in nodes and (written := nodes[path].written):
            word = f"{key}={written}"  # in quotes 4:00 would be minutes
        self.places[f"override {word[:100]}"] = source.place(at)
        return word
