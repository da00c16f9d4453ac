"""The points of a sweep: the section `sweep` of a file, and lists of values on the command line."""

import copy
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...base import installation
from ...config import overrides
from ...config.keys import as_whole, nearest
from ...config.load import SWEEP, read, resolve_document
from ...config.loaded import LoadedSpec
from ...config.yaml_reader import Document, YamlNode
from ...contract.problems import KeyPath, Place, Problem, SpecError
from ...contract.spec import METRIC_MODES

KEYS = ("grid", "list", "max_parallel", "metric")
MAX_POINTS = 1000  # Slurm's default MaxArraySize is 1001. Source: slurm.conf(5)
FIXED = ("name", "runs_root", SWEEP)  # the sweep lies in the folder of one name
_GRID = "write a list of values: grid: {train.lr: [0.01, 0.1]}"
_LIST = "write list: [{train.lr: 0.1, train.momentum: 0.9}, {train.lr: 0.01}]"


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


def load(config: Path, arguments: Sequence[str]) -> LoadedSweep:
    """Return the points of a YAML file with `KEY=VALUE` and `KEY=V1,V2` of the command line.

    Lists of the command line multiply the points of the section, and replace its keys.
    Raises: SpecError; its text lists the mistakes of the section and of every point.
    """
    fixed, axes = split(arguments)
    text, document = read(config, fixed)
    section = document.values.pop(SWEEP, None)
    document.nodes.setdefault((SWEEP,), YamlNode(Place(str(config))))
    own = _Section(document, {} if section is None else section)
    given = {word.partition("=")[0] for word in fixed} | {*axes}
    points = own.points(given)
    listed = []
    for name, values in axes.items():
        place = Place(f"override {name}={','.join(values)}"[:100], (1, len(fixed)))
        listed.append([own.placed(f"{name}={value}", place) for value in values])
    both = itertools.product(points, list(itertools.product(*listed)))
    lines = [(*filter(None, a), *b) for a, b in both]
    if lines == [()] and not document.problems:
        example = installation.override("train.lr=0.01,0.1")
        own.refuse((), "has no points", f"add {example}, or a section sweep to the file")
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
    if problems:
        raise SpecError(problems)
    return LoadedSweep(tuple(made), own.max_parallel, own.metric)


def split(arguments: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Divide the arguments: `train.lr=0.01,0.1` lists values, `launch.args=[a,b]` is one value.

    Raises: SpecError.
    """
    fixed: list[str] = []
    axes: dict[str, list[str]] = {}
    for argument in arguments:
        name, _, written = argument.partition("=")
        axes.pop(name, None)  # the last of two equal keys wins
        texts = _parts(written)
        if len(texts) == 1 or name.startswith(f"{SWEEP}."):
            fixed.append(argument)
        elif "" in texts or name in FIXED:
            what, words = "has an empty value", f"{name}={','.join(filter(None, texts))}"
            if name in FIXED:
                what, words = f"{name} is the same for all points", f"{name}={texts[0]}"
            raise SpecError([Problem(tuple(name.split(".")), what, f"write {words}")])
        else:
            fixed = [each for each in fixed if each.partition("=")[0] != name]
            axes[name] = texts
    return fixed, axes


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


class _Section:
    """The section of a file; its mistakes become problems of the document."""

    def __init__(self, document: Document, written: Any) -> None:
        self.places: dict[str, Place] = {}  # of the points' words, by their place as overrides
        self._document = document
        self._section: dict[str, Any] = written if isinstance(written, dict) else {}
        if self._section is not written:
            self.refuse((), "must be a mapping with grid or list", _GRID)
        for name in self._section:
            if name not in KEYS:
                guess = nearest(name, KEYS)
                hint = f"did you mean {guess}?" if guess else f"known: {', '.join(KEYS)}"
                self.refuse((name,), "unknown key", hint)
        limit = self.max_parallel = as_whole(self._section.get("max_parallel"), int)
        if limit is not None and not (type(limit) is int and limit > 0):
            self.refuse(("max_parallel",), "must be a whole number, at least 1")
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
        grid, lines = self._section.get("grid"), self._section.get("list")
        if grid is not None and lines is not None:
            self.refuse(("list",), "stands beside grid", "keep one of them")
        elif grid is not None and self._is_mapping(grid, ("grid",), _GRID):
            axes = (self._axis(key, grid[key]) for key in grid if key not in given)
            return list(itertools.product(*axes))
        elif lines is not None:
            if not isinstance(lines, list) or not lines:
                self.refuse(("list",), "needs a list of mappings", _LIST)
            elif all(self._is_mapping(e, ("list", n), _LIST) for n, e in enumerate(lines)):
                return [
                    tuple(self._word(k, v, ("list", n, k)) for k, v in e.items() if k not in given)
                    for n, e in enumerate(lines)
                ]
        return [()]

    def _word(self, key: str, value: Any, at: KeyPath) -> str:
        """Return `KEY=VALUE` of the value at a place of the section, as its key takes it."""
        path, full = tuple(key.split(".")), (SWEEP, *at)
        inner = self._document.nodes.items()
        nodes = {path + x[len(full) :]: node for x, node in inner if x[: len(full)] == full}
        value = overrides.typed(value, path, nodes)
        word = f"{key}={json.dumps(value, ensure_ascii=False)}"
        return self.placed(word, self._document.place(full))

    def placed(self, word: str, place: Place) -> str:
        """Return a `KEY=VALUE` after noting where the user wrote it, for its problems."""
        self.places[f"override {word[:100]}"] = place
        return word

    def _axis(self, key: str, values: Any) -> list[str]:
        if isinstance(values, list) and values:
            return [self._word(key, value, ("grid", key, n)) for n, value in enumerate(values)]
        hint = _GRID if isinstance(values, dict) else f"write {key}: [{values or '...'}]"
        self.refuse(("grid", key), "needs a list of values", hint)
        return [""]  # no word, so that each point is without this mistake

    def _is_mapping(self, written: Any, at: KeyPath, hint: str) -> bool:
        if not isinstance(written, dict) or not written:
            self.refuse(at, "needs keys of the spec", hint)
            return False
        for key in written:
            if key.partition(".")[0] in FIXED:
                self.refuse((*at, key), f"{key} is the same for all points of a sweep")
        return True
