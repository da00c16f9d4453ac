"""Makes a checked spec of each point of a sweep, or reports all mistakes of all points at once."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...config import overrides
from ...config.load import SWEEP, LoadedSpec, read, resolve_document
from ...config.yaml_reader import Document
from ...problems import Problem, SpecError
from ...spec import METRIC_MODES
from . import section


@dataclass(frozen=True)
class Point:
    """A point of a sweep. overrides: the `KEY=VALUE` by which it differs from the user's spec."""

    overrides: tuple[str, ...]
    loaded: LoadedSpec


@dataclass(frozen=True)
class LoadedSweep:
    """The points of a sweep, of which no two have the same spec.

    num_equal: how many more the user wrote, or were drawn, whose spec a point had before.
    """

    points: tuple[Point, ...]
    max_parallel: int | None
    metric: str | None
    num_equal: int

    @property
    def digest(self) -> str:
        """SHA-256 over the specs of all points."""
        specs = "".join(point.loaded.spec.to_json() for point in self.points)
        return hashlib.sha256(specs.encode()).hexdigest()


def load(config: Path, arguments: Sequence[str]) -> LoadedSweep:
    """Return the points of a YAML file with `KEY=VALUE` and `KEY=V1,V2` of the command line.

    Raises: SpecError; its text lists the mistakes of the section and of every point.
    """
    given = section.split(arguments)
    text, document = read(config, given.fixed)
    section_args = section.read(document, given)
    fixed = [each for each in given.fixed if not each.startswith(f"{SWEEP}.")]
    problems: dict[Problem, None] = {}
    points: dict[str, Point] = {}
    for values in section_args.points or [()]:
        words = tuple(map(section.argument, values))
        own = Document(copy.deepcopy(document.values), dict(document.nodes), [*document.problems])
        wrong = [overrides.merge(own, each) for each in values]
        own.problems += [each for each in wrong if each is not None]
        try:
            loaded = resolve_document(text, own, [*fixed, *words])
        except SpecError as error:
            # Each drawn value of a key may be wrong: the first one is shown.
            known = {(each.path, each.place) for each in problems}
            new = [each for each in error.problems if (each.path, each.place) not in known]
            problems |= dict.fromkeys(new)
            continue
        problems |= dict.fromkeys(_of_metric(document, section_args.metric, loaded))
        points.setdefault(loaded.spec.to_json(), Point(words, loaded))
    if problems:
        raise SpecError(problems)
    num_equal = len(section_args.points) - len(points)
    return LoadedSweep(
        tuple(points.values()), section_args.max_parallel, section_args.metric, num_equal
    )


def _of_metric(document: Document, metric: str | None, loaded: LoadedSpec) -> list[Problem]:
    """Return what is wrong with the metric: it must be known which of two values is better."""
    if metric is None or metric in METRIC_MODES or loaded.spec.checkpoint.best_mode != "auto":
        return []
    hint = f"built in: {', '.join(METRIC_MODES)}; of your own one, write checkpoint.best_mode"
    at = (SWEEP, "metric")
    return [Problem(at, f"{metric} is not built in", hint, place=document.place(at))]
