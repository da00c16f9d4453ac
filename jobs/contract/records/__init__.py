"""The content of each file in a run directory, one frozen dataclass per file, and its codec.

- ended: how each attempt ended, and what was decided.
- frozen: the code, packages and overrides of a run, and the later changes of its spec.
- nodes: the plan of an attempt, and how agents and ranks ended.
- queued: the jobs of a run, the Slurm that has them, and the owner of the run directory.
- timeline: what happened when.
- training: progress, checkpoints and results.

A field is a key of the JSON object, and its type hint is the type that the key must have. One
version of the kit writes a file and another one may read it (a run keeps the code that it was
submitted with, the commands come from the checkout), so keys that a class does not have are
ignored and a field with a default may be missing. Changes that go beyond that raise
`jobs.contract.rundir.FORMAT`. Standard library only; the trainer imports these modules, too.

Python takes half a millisecond to make a dataclass, so a command imports only the files with its
records. The codec itself stands here.
"""

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Literal, TypeVar

from ...base import files
from ...base.errors import RecordError as RecordError

Record = TypeVar("Record")

# Metadata of a field: the key is left out of the file while the value is None.
OMIT_NONE = {"omit_none": True}


def of_plugin(kind: type[Record], plugins: Mapping[str, object], plugin: str) -> Record | None:
    """Return what a plugin keeps in a record of the core, by its name: a record of its own type.

    None where it keeps nothing. Read from a file it is JSON. Raises: RecordError.
    """
    value = plugins.get(plugin)
    return value if value is None or isinstance(value, kind) else decode(kind, value, plugin)


def read(kind: type[Record], path: Path) -> Record | None:
    """Return the record in a file; None where there is no such file.

    Raises: RecordError for another content, OSError.
    """
    value = files.read_json(path)
    return None if value is None else decode(kind, value, str(path))


def read_leniently(kind: type[Record], path: Path) -> Record | None:
    """Return the record in a file that a user's script may have written.

    None for a missing file and for what is no such record; a key of a wrong type counts as missing.
    """
    try:
        return decode(kind, files.read_json(path), str(path), is_lenient=True)
    except RecordError:
        return None


def write(path: Path, record: object) -> None:
    """Replace the file by this record, atomically and durably."""
    files.write_atomic(path, text(record))


def text(record: object) -> str:
    """Return the file of this record, as text."""
    return json.dumps(encode(record), indent=2, ensure_ascii=False) + "\n"


def read_lines(kind: type[Record], path: Path) -> list[Record]:
    """Return the records of a JSON-lines file; a last line that a crash cut off does not count.

    Raises: RecordError, OSError.
    """
    lines = enumerate(files.read_jsonl(path), 1)
    return [decode(kind, line, f"{path}, line {number}") for number, line in lines]


def append(path: Path, record: object) -> None:
    """Append the record durably, as one line in a single write."""
    files.append_jsonl(path, encode(record), durable=True)


def decode(kind: type[Record], value: object, where: str, is_lenient: bool = False) -> Record:
    """Return the record of a class in a JSON value. `where`: the file, for the error.

    `is_lenient`: a key of a wrong type counts as missing. Raises: RecordError.
    """
    if not isinstance(value, Mapping):
        raise RecordError(f"{where}: expected a JSON object, found {_shown(value)}")
    fields: dict[str, object] = {}
    for each, hint, as_they_are in _hints(typing.cast(type, kind)):
        item = value.get(each.name, ...)
        if type(item) in as_they_are:
            fields[each.name] = item  # most are
            continue
        is_required = (
            each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
        )
        if item is ...:
            if is_required:
                raise RecordError(f"{where}: the key {each.name} is missing")
            continue
        try:
            fields[each.name] = _decoded(hint, item, f"{where}: {each.name}")
        except RecordError:
            if is_required or not is_lenient:
                raise
    return kind(**fields)


@functools.cache
def _hints(kind: type) -> list[tuple[dataclasses.Field[object], object, set[object]]]:
    """Return the fields of a record with their types, and the types that `_decoded` returns."""
    hints = typing.get_type_hints(kind)
    plain = {str, bool, int, float, types.NoneType}
    return [
        (each, hint, {hint, *_options(hint)} & plain)
        for each in dataclasses.fields(kind)
        for hint in [hints[each.name]]
    ]


def _options(hint: object) -> tuple[object, ...]:
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return typing.get_args(hint) if is_union else ()


def _decoded(hint: object, value: object, where: str) -> object:
    """Return a JSON value as the type of a field. Raises: RecordError."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and types.NoneType in options:
            return None
        *others, last = (each for each in options if each is not types.NoneType)
        return _decoded(next((each for each in others if type(value) is each), last), value, where)
    if origin in (tuple, list) and isinstance(value, list):
        return origin(_decoded(options[0], item, f"{where}[{n}]") for n, item in enumerate(value))
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {name: _decoded(options[1], value[name], f"{where}.{name}") for name in value}
    if origin is Literal and value in options:
        return value
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return decode(hint, value, where)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        if isinstance(value, str) and value in list(hint):
            return hint(value)
        raise RecordError(f"{where}: expected one of {', '.join(hint)}, found {_shown(value)}")
    if hint in (object, typing.Any):
        return value
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is hint:  # not isinstance: True is an int
        return value
    raise RecordError(f"{where}: expected {getattr(hint, '__name__', hint)}, found {_shown(value)}")


def _shown(value: object) -> str:
    is_plain = value is None or isinstance(value, (str, int, float))
    return json.dumps(value, ensure_ascii=False)[:60] if is_plain else f"a {type(value).__name__}"


def encode(value: object) -> object:
    """Return a record as a JSON value: the fields of a dataclass by name, tuples as lists."""
    if isinstance(value, Mapping):
        return {name: encode(item) for name, item in value.items()}
    if not dataclasses.is_dataclass(value):
        return [encode(item) for item in value] if isinstance(value, tuple) else value
    fields = {}
    for each in dataclasses.fields(value):
        item = getattr(value, each.name)
        beside = each.metadata.get("omit_without")
        is_omitted = each.metadata.get("omit_none") or (beside and not getattr(value, beside))
        if item is not None or not is_omitted:
            fields[each.name] = encode(item)
    return fields
