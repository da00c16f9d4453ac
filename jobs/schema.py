"""What editors and readers know of a spec: `configs/schema.json` and the table in README.md.

`python -m jobs.schema` writes both anew from the dataclasses of jobs.spec
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from jobs.spec import Scalar
from jobs.spec_keys import Key, in_words, keys
from jobs.validate import adapter

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = ROOT / "configs" / "schema.json"
README = ROOT / "README.md"
BEGIN, END = "<!-- spec:begin -->", "<!-- spec:end -->"
_DIALECT = "http://json-schema.org/draft-07/schema#"  # what editors' YAML servers read
_AS_WRITTEN = {"type": ["string", "number", "boolean"]}


def schema() -> str:
    """The text of `configs/schema.json`."""
    tree = _for_editors(adapter().json_schema())
    tree["definitions"] = tree.pop("$defs")
    text = json.dumps({"$schema": _DIALECT, **tree}, indent=2, ensure_ascii=False)
    return text.replace("#/$defs/", "#/definitions/") + "\n"


def _for_editors(node: Any) -> Any:
    """Without titles; a list or mapping of text takes numbers, as `jobs.load` does."""
    if not isinstance(node, dict):
        return node
    edited = {}
    for name, value in node.items():
        if name in ("items", "additionalProperties") and value == {"type": "string"}:
            edited[name] = _AS_WRITTEN
        elif name != "title" or isinstance(value, dict):
            edited[name] = _for_editors(value)
    return edited


def table() -> str:
    """The README's table of all keys, in Markdown."""
    rows = [
        f"| `{key.dotted}` | {_type(key)} | {_default(key)} | {key.description} |"
        for key in keys().values()
    ]
    head = ["| key | type | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *(row.replace("\n", " ") for row in rows)])


def _type(key: Key) -> str:
    if key.type == dict[str, Scalar]:
        return "mapping of options"
    return in_words(key.type).removeprefix("a ")


def _default(key: Key) -> str:
    if key.default in (None, [], {}):
        return ""
    text = key.default if isinstance(key.default, str) else json.dumps(key.default)
    return f"`{text}`"


def with_table(readme: str) -> str:
    """The README with its table between the markers written anew. Raises ValueError without."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"README.md lacks the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main() -> int:
    """Write both files; 1 where the README cannot take the table."""
    SCHEMA.write_text(schema(), encoding="utf-8")
    try:
        README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
