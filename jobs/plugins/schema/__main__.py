"""Generates `configs/schema.json` for editors, and the tables of keys in `configs/README.md`."""

import json
import types
import typing
from pathlib import Path
from typing import Any, Literal

from ...config.keys import Key, keys, sections, type_name
from ...config.load import SWEEP
from ...contract.spec import SECTIONS, Spec

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = ROOT / "configs" / "schema.json"
REFERENCE = ROOT / "configs" / "README.md"
BEGIN, END = "<!-- make schema writes from here -->", "<!-- to here -->"
_DIALECT = "http://json-schema.org/draft-07/schema#"  # what editors' YAML servers read
_AS_WRITTEN = {"type": ["string", "number", "boolean"]}
_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string", types.NoneType: "null"}
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def schema() -> str:
    tree = _section("")
    tree["properties"][SWEEP] = {"type": "object", "description": "Runs to try: docs/sweeps.md."}
    tree["properties"]["extends"] = {"type": ["string", "array"], "description": "Specs below it."}
    tree["patternProperties"] = {"^x-": True}
    tree["definitions"] = {cls.__name__: _section(name) for name, cls in sorted(SECTIONS.items())}
    return json.dumps({"$schema": _DIALECT, **tree}, indent=2, ensure_ascii=False) + "\n"


def _section(section: str) -> dict[str, Any]:
    """Return the JSON schema of a section; "" is the whole spec."""
    properties: dict[str, Any] = {}
    for name in sections()[section]:
        key = keys().get((section, name) if section else (name,))
        if key is None:
            properties[name] = {"$ref": f"#/definitions/{name.capitalize()}"}
            continue
        limits = {_BOUNDS.get(name, name): limit for name, limit in key.limits.items()}
        default = {} if isinstance(key.default, (list, dict)) else {"default": key.default}
        values = {**default, "description": key.description, **_type_of(key.type, limits)}
        properties[name] = dict(sorted(values.items()))
    what = (SECTIONS[section] if section else Spec).__doc__
    closed = {"additionalProperties": False, "description": what}
    return {**closed, "properties": properties, "type": "object"}


def _type_of(annotation: Any, limits: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of a type. An item that is text may be a number, as in the loader."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return {}
    if origin is Literal:
        return {"enum": list(inner), "type": "string"}
    if origin in (list, dict):
        item = _AS_WRITTEN if inner[-1] is str else _type_of(inner[-1], {})
        name, kind = ("items", "array") if origin is list else ("additionalProperties", "object")
        return {name: item or True, "type": kind}
    if inner and "pattern" not in limits:
        return {"anyOf": [_type_of(part, limits) for part in inner]}
    bounds = {} if annotation is types.NoneType else limits
    type_: Any = ["string", "integer"] if "pattern" in bounds else _TYPES[annotation]  # 0770
    return dict(sorted({"type": type_, **bounds}.items()))


def reference() -> str:
    """Return the tables of `configs/README.md` in Markdown: every key with type and meaning."""
    parts = []
    for name in sections():  # the top level first
        members = [key for key in keys().values() if ".".join(key.path[:-1]) == name]
        what = SECTIONS[name].__doc__.partition(".")[0] if name else "The run itself"
        head = [f"## {name or 'top level'}", "", f"{what}.", ""]
        head += ["| key | type | default | meaning |", "|---|---|---|---|"]
        parts.append("\n".join([*head, *map(_row, members)]))
    return "\n\n".join(parts)


def _row(key: Key) -> str:
    kind = type_name(key.type).removeprefix("a ")
    default = key.default if isinstance(key.default, str) else json.dumps(key.default)
    shown = "" if default in ("", "null", "[]", "{}") else f"`{default}`"
    return f"| `{key.dotted}` | {kind} | {shown} | {key.description} |"


def with_tables(text: str, tables: str) -> str:
    """Return the Markdown text with new tables between its markers."""
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    return f"{before}{BEGIN}\n{tables}\n{END}{after}"


def main() -> None:
    SCHEMA.write_text(schema(), encoding="utf-8")
    text = REFERENCE.read_text(encoding="utf-8")
    REFERENCE.write_text(with_tables(text, reference()), encoding="utf-8")


if __name__ == "__main__":
    main()
