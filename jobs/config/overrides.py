"""`KEY=VALUE` words of the command line: read, merged into a spec, written into its text."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jobs.config import yaml_reader
from jobs.config.keys import is_text_item, keys, nearest
from jobs.config.problems import CONTROL, Path, Place, Problem, is_word, printable
from jobs.config.yaml_reader import Document, Node

_QUOTE = "quote the value for YAML as well: KEY='\"VALUE\"'"
_CONTROL = re.compile(f"[{CONTROL}]")


@dataclass(frozen=True)
class Override:
    """One `KEY=VALUE`, its value read by the same rules as the file's."""

    path: Path
    document: Document


def parse(word: str, number: int) -> Override | Problem:
    """The override that a word of the command line states, or what is wrong with it."""
    name, equals, written = word.partition("=")
    place = Place(f"override {printable(word[:100])}", (1, number))
    if not equals:
        known = [key.dotted for key in keys().values()]
        in_mapping = any(name.startswith(f"{key}.") for key in known)
        key = name if in_mapping else nearest(name, known) or "slurm.nodes"
        return Problem(place, (), "is not KEY=VALUE", f"write {printable(key)}=VALUE")
    path: Path = tuple(name.split("."))
    if not all(path) or len(word.encode(errors="replace")) > yaml_reader.MAX_BYTES:
        return Problem(place, (), "cannot be read", "write it as slurm.nodes=2, within 64 KiB")
    if _CONTROL.search(word):
        return Problem(place, path, "has a line break or control character", "leave it out")
    document = yaml_reader.parse(written, lambda _line: place) if written.strip() else Document()
    end = document.nodes[()].end if document.nodes else len(written)
    if written.lstrip().startswith("#") or written[end:].strip():
        return Problem(place, path, "# begins a comment: the value would end there", _QUOTE)
    if document.problems:
        return replace(document.problems[0], path=path, hint=_QUOTE)
    node = Node(place, None, 0, 0, 0, False)
    nodes = {path + at: found for at, found in {(): node, **document.nodes}.items()}
    return Override(path, Document(as_written(document.values, path, nodes), nodes))


def as_written(value: Any, path: Path, nodes: dict[Path, Node]) -> Any:
    """The value with `1e-3` kept as the text "1e-3" where lists and mappings of text hold it."""
    if isinstance(value, dict):
        return {name: as_written(item, (*path, name), nodes) for name, item in value.items()}
    if isinstance(value, list):
        return [as_written(item, (*path, at), nodes) for at, item in enumerate(value)]
    written = nodes[path].written if path in nodes else None
    if value is None or written is None or not is_text_item(path):
        return value
    is_extra = path[:2] == ("slurm", "sbatch_args")
    keeps_meaning = isinstance(value, bool) or str(value) == written
    return value if is_extra and keeps_meaning else written


def merge(document: Document, override: Override) -> Override | Problem:
    """Set one key in the document. Returns the override with the key as the file spells it."""
    path = _spelled_as(document.values, override.path)
    nodes = {path + at[len(path) :]: node for at, node in override.document.nodes.items()}
    own = nodes[path]
    parent = document.values
    for depth, name in enumerate(path[:-1], 1):
        if parent.get(name) is None:
            parent[name] = {}
            document.nodes[path[:depth]] = own
        parent = parent[name]
        if not isinstance(parent, dict):
            hint = "override the key itself, such as launch.args=[a, b]"
            return Problem(own.place, path[:depth], "has no keys of its own", hint)
    parent[path[-1]] = override.document.values
    for at in [at for at in document.nodes if at[: len(path)] == path]:
        del document.nodes[at]
    document.nodes.update(nodes)
    return Override(path, Document(override.document.values, nodes))


def _spelled_as(values: Any, path: Path) -> Path:
    """The path with an sbatch option spelled as the file does, mail_type or mail-type."""
    if path[:2] != ("slurm", "sbatch_args") or len(path) != 3:
        return path
    extra = (values.get("slurm") or {}) if isinstance(values, dict) else {}
    extra = extra.get("sbatch_args") if isinstance(extra, dict) else {}
    for name in extra if isinstance(extra, dict) else {}:
        if name.replace("_", "-") == str(path[2]).replace("_", "-"):
            return (*path[:2], name)
    return path


def written_into(text: str, overrides: Sequence[Override], words: Sequence[str]) -> str:
    """The user's text with the overrides in their places, and the words in its first line."""
    if not overrides:
        return text
    for override in overrides:
        text = _spliced(text, override.path, override.document.values)
    return f"# Applied from the command line: {shlex.join(words)}\n{text}" if words else text


def _spliced(text: str, path: Path, value: Any) -> str:
    """The text with one value replaced or added; all of it anew where that cannot be done."""
    document = _reread(text)
    expected = _with(document.values, path, value)
    for edit in (_replaced, _added):
        edited = edit(text, document, path, value)
        if edited is not None and _reread(edited).values == expected:
            return edited
    return json.dumps(expected, indent=2, ensure_ascii=False) + "\n"


def _reread(text: str) -> Document:
    document = yaml_reader.parse(text, lambda line: Place(str(line)))
    return Document() if document.problems else document


def _with(values: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    values = values if isinstance(values, dict) else {}
    return {**values, path[0]: _with(values.get(path[0]), path[1:], value)}


def _replaced(text: str, document: Document, path: Path, value: Any) -> str | None:
    node = document.nodes.get(path)
    if node is None:
        return None
    space = "" if text[node.start - 1].isspace() else " "
    return text[: node.start] + space + _yaml(value) + text[node.end :]


def _added(text: str, document: Document, path: Path, value: Any) -> str | None:
    """A new line after the last entry of the mapping around the key, or a new first entry."""
    depth = next(n for n in range(len(path) - 1, -1, -1) if path[:n] in document.nodes)
    around = document.nodes[path[:depth]]
    siblings = [at for at in document.nodes if len(at) == depth + 1 and at[:depth] == path[:depth]]
    value = _with({}, path[depth + 1 :], value)
    if not siblings:
        return _replaced(text, document, path[:depth], {path[depth]: value})
    entry = f"{_yaml_key(str(path[depth]))}: {_yaml(value)}"
    start = document.nodes[siblings[0]].key_start
    if around.flow:
        return f"{text[:start]}{entry}, {text[start:]}"
    end = around.end if text[around.end - 1 : around.end] == "\n" else _line_end(text, around.end)
    indent = " " * (start - text.rfind("\n", 0, start) - 1)
    newline = "" if text[:end].endswith("\n") else "\n"
    return f"{text[:end]}{newline}{indent}{entry}\n{text[end:]}"


def _line_end(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end + 1


def _yaml(value: Any) -> str:
    """A value in YAML's flow style: JSON, with plain words as keys."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_yaml_key(k)}: {_yaml(v)}" for k, v in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def _yaml_key(name: str) -> str:
    is_plain = is_word(name) and yaml_reader.scalar(name) == name
    return name if is_plain else json.dumps(name, ensure_ascii=False)
