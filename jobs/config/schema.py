"""Generates `configs/schema.json` for editors, and the tables of the docs that the code has.

`make schema` writes them: the keys from the dataclasses of jobs.spec, the kinds of an end from
jobs.kinds, inherited variables from jobs.environment, rooms from the docstrings of the packages.
"""

from __future__ import annotations

import ast
import graphlib
import json
import re
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from ..kinds import KINDS, Row
from ..spec import SECTIONS, Scalar, Spec
from .keys import (
    Key,
    default_text,
    keys,
    section_summary,
    sections,
    type_name,
)
from .load import SWEEP

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "configs" / "schema.json"
REFERENCE = ROOT / "configs" / "README.md"
TROUBLESHOOTING = ROOT / "docs" / "troubleshooting.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- make schema writes from here -->", "<!-- to here -->"
_DIALECT = "http://json-schema.org/draft-07/schema#"  # what editors' YAML servers read
_AS_WRITTEN = {"type": ["string", "number", "boolean"]}
_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string", types.NoneType: "null"}
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def schema() -> str:
    """Return the text of `configs/schema.json`."""
    tree = _section("")
    tree["properties"][SWEEP] = {"type": "object", "description": "Runs to try: docs/sweeps.md."}
    tree["definitions"] = {cls.__name__: _section(name) for name, cls in sorted(SECTIONS.items())}
    text = json.dumps({"$schema": _DIALECT, **tree}, indent=2, ensure_ascii=False)
    return text + "\n"


def _section(section: str) -> dict[str, Any]:
    """Return the JSON schema of a section; "" is the whole spec."""
    properties: dict[str, Any] = {}
    for name in sections()[section]:
        key = keys().get((section, name) if section else (name,))
        reference = {"$ref": f"#/definitions/{name.capitalize()}"}
        properties[name] = reference if key is None else _property(key)
    what = (SECTIONS[section] if section else Spec).__doc__
    closed = {"additionalProperties": False, "description": what}
    return {**closed, "properties": properties, "type": "object"}


def _property(key: Key) -> dict[str, Any]:
    limits = {_BOUNDS.get(name, name): limit for name, limit in key.limits.items()}
    default = {} if isinstance(key.default, (list, dict)) else {"default": key.default}
    values = {**default, "description": key.description, **_type_of(key.type, limits)}
    return dict(sorted(values.items()))


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
    if inner:
        return {"anyOf": [_type_of(part, limits) for part in inner]}
    bounds = {} if annotation is types.NoneType else limits
    return dict(sorted({"type": _TYPES[annotation], **bounds}.items()))


def reference() -> str:
    """Return the tables of `configs/README.md` in Markdown: every key with type and meaning."""
    parts = []
    for section, what, members in _sections():
        head = [f"## {section}", "", what + ".", ""]
        head += ["| key | type | default | meaning |", "|---|---|---|---|"]
        rows = [
            f"| `{key.dotted}` | {_type(key)} | {_default(key)} | {key.description} |"
            for key in members
        ]
        parts.append("\n".join([*head, *rows]))
    return "\n\n".join(parts)


def _sections() -> Iterator[tuple[str, str, list[Key]]]:
    """Yield (name, description, keys) of each section, the top level first."""
    for name in sections():
        members = [key for key in keys().values() if ".".join(key.path[:-1]) == name]
        yield name or "top level", section_summary(name), members


def _type(key: Key) -> str:
    if key.type == dict[str, Scalar]:
        return "mapping of options"
    return type_name(key.type).removeprefix("a ")


def _default(key: Key) -> str:
    text = default_text(key)
    return f"`{text}`" if text else ""


def kinds() -> str:
    """Return the table of `docs/troubleshooting.md` in Markdown: what `why` names, what to do."""
    rows = ["| kind | what it means | what you do before a resume |", "|---|---|---|"]
    for kind, row in KINDS.items():
        is_usual = row.advice == Row._field_defaults["advice"]
        advice = "–" if is_usual else row.advice.removesuffix(", then resume")
        rows.append(f"| `{kind}` | {row.what} | {advice} |")
    return "\n".join(rows)


def rooms() -> str:
    """Return the tables of `docs/architecture.md` in Markdown: the rooms, from top to bottom."""
    return "\n\n".join(_rooms_of(ROOT / package) for package in ("jobs", "trainer"))


def _rooms_of(package: Path) -> str:
    """Return the table of one package; a line `title: names` of its docstring is a row."""
    folders = sorted(path.parent for path in package.glob("*/__init__.py"))
    imported = {folder.name: _imported_rooms(folder, folders) for folder in folders}
    rows = [f"| `{package.name}/` | what is in it | imports |", "|---|---|---|"]
    for name in reversed([*graphlib.TopologicalSorter(imported).static_order()]):
        subject = " ".join(_docstring(package / name).partition("\n\n")[0].split())
        rows.append(f"| `{name}/` | {subject} | {', '.join(imported[name]) or '–'} |")
    for title, names in re.findall(r"^(\w+): ((?:\w+,\s+)*\w+)$", _docstring(package), re.M):
        files = ", ".join(f"`{name}.py`" for name in re.findall(r"\w+", names))
        rows.append(f"| {title} | {files} | – |")
    return "\n".join(rows)


def _imported_rooms(folder: Path, folders: list[Path]) -> list[str]:
    """Return the names of the other rooms of its package that a room imports."""
    text = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    named = set(re.findall(r"^ *from \.\.\.?(\w+)", text, re.M))
    for names in re.findall(r"^ *from \.\.\.? import (.+)", text, re.M):
        named.update(names.split(", "))
    return sorted(named & {each.name for each in folders} - {folder.name})


def _docstring(package: Path) -> str:
    text = (package / "__init__.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(text)) or ""


def with_tables(text: str, tables: str) -> str:
    """Return the Markdown text with new tables between its markers. ValueError without."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"lacks the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{tables}\n{END}{after}"


def tables_of_docs() -> dict[Path, str]:
    """Return the generated part of each page that has one."""
    return {
        REFERENCE: reference(),
        TROUBLESHOOTING: kinds(),
        ARCHITECTURE: rooms(),
    }


def main() -> int:
    """Write all files; returns 1 if a text is missing or has no markers."""
    SCHEMA.write_text(schema(), encoding="utf-8")
    for file, tables in tables_of_docs().items():
        try:
            text = with_tables(file.read_text(encoding="utf-8"), tables)
            file.write_text(text, encoding="utf-8")
        except (OSError, ValueError) as error:
            print(f"error: {file}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
