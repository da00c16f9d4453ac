"""The schema of the spec for pydantic-core, the validator inside of pydantic, made from the types.

pydantic makes the same schema (a test compares both), but takes longer for it than all other work
of a submit: its import and its `TypeAdapter`. This module knows only the types that
`jobs.spec` has. Source: pydantic_core.core_schema.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Sequence
from typing import Any, Literal

from slurm_job_kit.jobs.config.keys import alternatives, type_hints

_PLAIN = {int: "int", float: "float", bool: "bool", str: "str", Any: "any"}


def of_dataclass(cls: Any) -> dict[str, Any]:
    """Return the schema of a dataclass of `jobs.spec`.

    Raises: TypeError for an annotation that this module does not know.
    """
    hints = type_hints(cls)
    fields = dataclasses.fields(cls)
    arguments = {
        "type": "dataclass-args",
        "dataclass_name": cls.__name__,
        "fields": [_field(field, hints[field.name]) for field in fields],
    }
    return {
        "type": "dataclass",
        "cls": cls,
        "config": {"extra_fields_behavior": "forbid", "strict": True, "title": cls.__name__},
        "fields": [field.name for field in fields],
        "schema": arguments,
    }


def _field(field: dataclasses.Field[Any], annotation: Any) -> dict[str, Any]:
    constraints = {name: value for name, value in field.metadata.items() if name != "description"}
    is_made = field.default_factory is not dataclasses.MISSING
    default = {"default_factory": field.default_factory} if is_made else {"default": field.default}
    inner = {"type": "default", "schema": _value(annotation, constraints), **default}
    return {"type": "dataclass-field", "name": field.name, "schema": inner}


def _value(annotation: Any, constraints: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a value; constraints are those of a number or a text, perhaps null."""
    parts = alternatives(annotation)
    if parts != [annotation]:
        is_union = len(parts) > 1
        inner = _union(parts, constraints) if is_union else _value(parts[0], constraints)
        is_nullable = types.NoneType in typing.get_args(annotation)
        return {"type": "nullable", "schema": inner} if is_nullable else inner
    if annotation in _PLAIN:
        return {"type": _PLAIN[annotation], **constraints}
    if constraints:
        raise TypeError(f"{annotation} with {constraints}")
    return of_dataclass(annotation) if dataclasses.is_dataclass(annotation) else _many(annotation)


def _union(parts: Sequence[Any], constraints: dict[str, Any]) -> dict[str, Any]:
    if constraints:
        raise TypeError(f"{parts} with {constraints}")
    return {"type": "union", "choices": [_value(part, {}) for part in parts]}


def _many(annotation: Any) -> dict[str, Any]:
    """Return the schema of a choice of literals, of a list or of a mapping."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return {"type": "literal", "expected": list(arguments)}
    if origin is list:
        return {"type": "list", "items_schema": _value(arguments[0], {})}
    if origin is dict:
        keys, values = (_value(part, {}) for part in arguments)
        return {"type": "dict", "keys_schema": keys, "values_schema": values}
    raise TypeError(str(annotation))
