"""The hooks of this room: removed variables, and those that launch.env may not set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...environment import Door, pattern, without
from ...problems import Problem
from ...spec import Spec
from .lists import REFUSED, REMOVED


def start(
    door: Door, argv: Sequence[str], environ: Mapping[str, str], spec: Spec | None = None
) -> tuple[list[str], dict[str, str]]:
    """Return the environment without what would break the program, but for that of launch.env."""
    own = spec.launch.env.keys() if spec is not None and door is Door.TORCHRUN else ()
    kept = {name: environ[name] for name in own if name in environ}
    return [*argv], without(environ, REMOVED.get(door, ())) | kept


def problems(spec: Spec) -> Iterator[Problem]:
    """Yield the variables of launch.env that belong to others."""
    for name in spec.launch.env:
        hints = (hint for names, hint in REFUSED if pattern(names).fullmatch(name))
        if hint := next(hints, None):
            yield Problem(("launch", "env", name), f"{name} belongs to the kit", hint)
