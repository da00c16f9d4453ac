"""Generates `configs/schema.json` for editors, and tables in two READMEs and one page of docs.

`python -m jobs.config.schema` writes them from the dataclasses of jobs.spec. The table of inherited
variables in docs/environments.md comes from jobs.environment.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic

from slurm_job_kit.jobs import environment
from slurm_job_kit.jobs.config.keys import (
    Key,
    default_text,
    keys,
    section_summary,
    sections,
    type_name,
)
from slurm_job_kit.jobs.config.load import SWEEP
from slurm_job_kit.jobs.spec import Scalar, Spec

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "configs" / "schema.json"
README = ROOT / "README.md"
REFERENCE = ROOT / "configs" / "README.md"
ENVIRONMENTS = ROOT / "docs" / "environments.md"
BEGIN, END = "<!-- spec:begin -->", "<!-- spec:end -->"
_DIALECT = "http://json-schema.org/draft-07/schema#"  # what editors' YAML servers read
_AS_WRITTEN = {"type": ["string", "number", "boolean"]}


def schema() -> str:
    """Return the text of `configs/schema.json`."""
    tree = _for_editors(pydantic.TypeAdapter(Spec).json_schema())
    tree["definitions"] = tree.pop("$defs")
    tree["properties"][SWEEP] = {"type": "object", "description": "Runs to try: docs/sweeps.md."}
    text = json.dumps({"$schema": _DIALECT, **tree}, indent=2, ensure_ascii=False)
    return text.replace("#/$defs/", "#/definitions/") + "\n"


def _for_editors(node: Any) -> Any:
    """Return the schema without titles; a list or mapping of text allows numbers, as the loader."""
    if not isinstance(node, dict):
        return node
    edited = {}
    for name, value in node.items():
        if name in ("items", "additionalProperties") and value == {"type": "string"}:
            edited[name] = _AS_WRITTEN
        elif name != "title" or isinstance(value, dict):
            edited[name] = _for_editors(value)
    return edited


def overview() -> str:
    """Return the table of the top README in Markdown: one row per section, keys with defaults."""
    rows = ["| section | what | keys, with their defaults |", "|---|---|---|"]
    for section, what, members in _sections():
        assigned = " ".join(_assigned(key) for key in members)
        rows.append(f"| [{section}]({_reference(section)}) | {what} | {assigned} |")
    return "\n".join(rows)


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


def _reference(section: str) -> str:
    """Return a link from the top README to a section; the anchor is GitHub's for its heading."""
    return f"configs/README.md#{section.replace(' ', '-')}"


def _assigned(key: Key) -> str:
    default = _default(key).strip("`")
    return f"`{key.path[-1]}={default}`" if default else f"`{key.path[-1]}`"


def _type(key: Key) -> str:
    if key.type == dict[str, Scalar]:
        return "mapping of options"
    return type_name(key.type).removeprefix("a ")


def _default(key: Key) -> str:
    text = default_text(key)
    return f"`{text}`" if text else ""


def with_tables(text: str, tables: str) -> str:
    """Return the Markdown text with new tables between its markers. ValueError without."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"lacks the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{tables}\n{END}{after}"


def main() -> int:
    """Write all files; returns 1 if a text is missing or has no markers."""
    SCHEMA.write_text(schema(), encoding="utf-8")
    tables_of = {README: overview(), REFERENCE: reference(), ENVIRONMENTS: environment.markdown()}
    for file, tables in tables_of.items():
        try:
            text = with_tables(file.read_text(encoding="utf-8"), tables)
            file.write_text(text, encoding="utf-8")
        except (OSError, ValueError) as error:
            print(f"error: {file}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
