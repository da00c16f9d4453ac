"""The keys of a spec, from the dataclasses: types, names of types, and the nearest known name."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Literal

from ..contract.problems import KeyPath
from ..contract.spec import SECTIONS, Scalar, Spec

_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_CONTAINERS = {list: "a list", dict: "a mapping"}
# Keys of an older kit, each with what takes its place.
_REPLACED = {
    "notify.command": "hooks.end",
    **dict.fromkeys(("log.tensorboard", "log.wandb", "log.wandb_project"), "log.trackers"),
}
_PLURALS = {int: "whole numbers", float: "numbers"}


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of a spec."""

    path: tuple[str, ...]
    type: Any  # its annotation
    default: Any
    description: str
    limits: dict[str, Any] = dataclasses.field(default_factory=dict)  # ge, gt, le, lt, pattern
    plugin: str | dict[str, str] = ""  # that the key needs, or that values of these patterns need

    @property
    def dotted(self) -> str:
        return ".".join(self.path)


@lru_cache(maxsize=1)
def keys() -> dict[KeyPath, Key]:
    """Return every key that holds a value, by its path, in the order of the dataclasses."""
    return {key.path: key for key in _keys(Spec, ())}


@lru_cache(maxsize=1)
def sections() -> dict[str, list[str]]:
    """Return the key names of each section; "" is the top level, with the names of the sections."""
    classes = {"": Spec, **SECTIONS}
    return {name: [each.name for each in dataclasses.fields(cls)] for name, cls in classes.items()}


def _keys(cls: Any, above: tuple[str, ...]) -> Iterator[Key]:
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        path, annotation = (*above, field.name), hints[field.name]
        if dataclasses.is_dataclass(annotation):
            yield from _keys(annotation, path)
        else:
            factory = field.default_factory
            default = field.default if factory is dataclasses.MISSING else factory()
            limits = dict(field.metadata)
            about, plugin = limits.pop("description"), limits.pop("plugin", "")
            yield Key(path, annotation, default, about, limits, plugin)


def type_at(path: KeyPath) -> Any:
    """Return the type of a key, or of an item of a list or mapping; Any if any is allowed."""
    for length in range(len(path), 0, -1):
        if (key := keys().get(path[:length])) is not None:
            annotation = key.type
            for _ in path[length:]:
                annotation = (typing.get_args(annotation) or (Any,))[-1]
            return annotation
    return dict if len(path) < 2 else Any


def alternatives(annotation: Any) -> list[Any]:
    """Return the members of a union except None; for any other type, the type itself."""
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return [annotation]
    return [part for part in typing.get_args(annotation) if part is not types.NoneType]


def is_one_of(kind: type, annotation: Any) -> bool:
    """Return whether a type is `kind`, or a union with it: list of list[str], int of int | None."""
    return any(kind in (part, typing.get_origin(part)) for part in alternatives(annotation))


def fits(value: Any, annotation: Any) -> bool:
    """Return whether a value that is no list or mapping has a type; a whole number is a number."""
    kinds = alternatives(annotation)
    if value is None or Any in kinds:
        return Any in kinds or types.NoneType in typing.get_args(annotation)
    is_whole = type(value) is int and float in kinds
    return type(value) in kinds or is_whole or value in choices(annotation)


def as_whole(value: Any, annotation: Any) -> Any:
    """Return 1e5 and 32.0 as whole numbers where a type takes no others; any other value as is."""
    if not isinstance(value, float) or not value.is_integer() or abs(value) >= 2**63:
        return value
    is_meant = is_one_of(int, annotation) and not is_one_of(float, annotation)
    return int(value) if is_meant else value


def choices(annotation: Any) -> list[str]:
    """Return the literal values of a type: auto of int | Literal["auto"]."""
    literals = [part for part in alternatives(annotation) if typing.get_origin(part) is Literal]
    return [str(value) for part in literals for value in typing.get_args(part)]


def type_name(annotation: Any) -> str:
    """Return a type for a message: `a whole number or auto`, `one of sgd, adamw`."""
    if annotation == dict[str, Scalar]:
        return "a mapping of options"
    if annotation == Scalar:
        return "text, a number, or true or false"
    literals = choices(annotation)
    others = [p for p in alternatives(annotation) if typing.get_origin(p) is not Literal]
    if len(literals) > 1 and not others:
        return f"one of {', '.join(literals)}"
    return " or ".join([*map(_plain_name, others), *literals])


def _plain_name(annotation: Any) -> str:
    container = _CONTAINERS.get(typing.get_origin(annotation) or annotation)
    if container is None:
        return _NAMES.get(annotation, "a value")
    item = (typing.get_args(annotation) or (Any,))[-1]
    return container if item is Any else f"{container} of {_PLURALS.get(item) or type_name(item)}"


def is_text(path: KeyPath, is_override: bool) -> bool:
    """Return whether a number stands for its text: on the command line, where shells drop quotes.

    In a file only if the text has digits by its pattern. A slurm.mem without a unit is refused.
    """
    key = keys().get(path)
    if key is None or path == ("slurm", "mem") or str not in (kinds := alternatives(key.type)):
        return False
    return int not in kinds and (is_override or "pattern" in key.limits)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like `name`; None if none is like it."""
    matches = difflib.get_close_matches(name[:100], list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def unknown_key_hint(path: KeyPath) -> str:
    """Return what to write in place of a key that does not exist."""
    section, name = str(path[0]) if len(path) > 1 else "", str(path[-1])
    siblings = sections().get(section, [])
    names = {key.path[-1]: key.dotted for key in keys().values()}
    if new := _REPLACED.get(".".join(map(str, path))):
        return f"write {new}"
    if "." in name:
        return "write it nested, such as {slurm: {nodes: 2}}"
    if name.lower() in names:
        return f"did you mean {names[name.lower()]}?"
    parts = [each for each in siblings if name in each.split("_") or each.endswith(f"_{name}")]
    if guesses := [near] if (near := nearest(name, siblings)) and near not in parts else parts:
        return f"did you mean {', '.join(f'{section}.{each}'.lstrip('.') for each in guesses)}?"
    if section == "slurm":
        return f"write other sbatch options below slurm.sbatch_args; known: {', '.join(siblings)}"
    if guess := nearest(name, names):
        return f"did you mean {names[guess]}?"
    return f"known: {', '.join(siblings or filter(None, sections()))}"
