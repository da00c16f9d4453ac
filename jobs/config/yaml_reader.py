"""Parses strict YAML 1.2: one document of plain values, with the place of each key.

PyYAML only splits the text into events here. Its loaders follow YAML 1.1, where `no` is false and
`4:00:00` is a number, and they take the last of two equal keys; its composer drops the anchors and
tags that are refused here. Source: YAML 1.2.2, 10.3 Core Schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml

from ..problems import CONTROL, KeyPath, Place, Problem, format_value, printable

MAX_BYTES = 64 * 1024  # no value then exceeds Linux's limit for one argument (128 KiB)
MAX_DEPTH = 32  # every recursion over a document then stays far below Python's limit
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
# PyYAML takes some of these for line breaks, YAML 1.2 does not; tabs and line ends are allowed.
_CONTROL = re.compile(rf"(?![\t\r\n])[{CONTROL}\ufeff\ufffe\uffff]")
_UNESCAPED = 'write it as an escape in "double quotes" if you need it'


@dataclass(frozen=True)
class YamlNode:
    """The place of a value, and its text."""

    place: Place
    written: str | None = None  # the text of an unquoted scalar


@dataclass
class Document:
    """The values of a text, the node of each key, and what is wrong with the text."""

    values: Any = None
    nodes: dict[KeyPath, YamlNode] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def place(self, path: KeyPath) -> Place:
        """Return the place of a key, or of the nearest key around it."""
        while path not in self.nodes and path:
            path = path[:-1]
        return self.nodes[path].place if path in self.nodes else Place("")


def scalar(written: str) -> Any:
    """Return the value of an unquoted scalar in the core schema.

    Raises ValueError for an integer of more than 64 bits.
    """
    if written in _CONSTANTS:
        return _CONSTANTS[written]
    if _INT.fullmatch(written):
        number = int(written, 0 if written[:2] in ("0o", "0x") else 10) if len(written) < 99 else 0
        if len(written) >= 99 or not -(2**63) <= number < 2**63:
            raise ValueError("does not fit into 64 bits")
        return number
    if _FLOAT.fullmatch(written) or _SPECIAL.fullmatch(written):
        return float(written.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return written


def parse(text: str, place_of: Callable[[int], Place]) -> Document:
    """Return the document in `text`; `place_of` gives the place of a line, counted from 1."""
    document = Document(nodes={(): YamlNode(place_of(1))})
    if wrong := _CONTROL.search(text):
        line = text.count("\n", 0, wrong.start()) + 1
        what = f"the character U+{ord(wrong[0]):04X} is not allowed"
        document.problems.append(Problem((), what, _UNESCAPED, place=place_of(line)))
        return document
    try:
        _Builder(text, place_of, document).build()
    except (yaml.YAMLError, ValueError) as error:  # SafeLoader: ValueError of "\\U00110000"
        document.problems.append(_syntax(error, place_of))
    except _Stop:
        pass
    return document


def _syntax(error: Exception, place_of: Callable[[int], Place]) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "it ends early"
    what = f"this is not YAML: {printable(str(reason))}"
    hint = "quote text that holds any of : # { } [ ] , & * ! | > % @ and indent with spaces"
    return Problem((), what, hint, place=place_of(mark.line + 1 if mark else 1))


class _Stop(Exception):
    """The rest of the text cannot be interpreted."""


class _Builder:
    """Builds the values of a document from PyYAML's events."""

    def __init__(self, text: str, place_of: Callable[[int], Place], document: Document) -> None:
        self._loader = LOADER(text)
        self._place_of = place_of
        self._document = document

    def build(self) -> None:
        loader = self._loader
        loader.get_event()
        if loader.check_event(yaml.StreamEndEvent):
            self._stop(1, (), "the file is empty", "start from one of the files in configs/")
        start = loader.get_event()
        if start.version or start.tags:
            self._report(start, (), "a % directive is not allowed", "delete it; this is YAML 1.2")
        self._document.values = self._value(())
        loader.get_event()
        if not loader.check_event(yaml.StreamEndEvent):
            line = loader.get_event().start_mark.line + 1
            self._stop(line, (), "a second document starts here", "keep one per file, without ---")

    def _report(self, event: Any, path: KeyPath, what: str, hint: str) -> None:
        place = self._place_of(event.start_mark.line + 1)
        self._document.problems.append(Problem(path, what, hint, place=place))

    def _stop(self, line: int, path: KeyPath, what: str, hint: str) -> None:
        self._document.problems.append(Problem(path, what, hint, place=self._place_of(line)))
        raise _Stop

    def _value(self, path: KeyPath, line: int | None = None) -> Any:
        event = self._loader.get_event()
        self._refuse_reference(event, path)
        if len(path) > MAX_DEPTH:
            self._stop(event.start_mark.line + 1, (), f"nested over {MAX_DEPTH} levels", "")
        place = self._place_of(line or event.start_mark.line + 1)
        value, written = None, None
        if isinstance(event, yaml.ScalarEvent):
            written = None if event.style else event.value
            value = self._scalar(event, path)
        elif isinstance(event, yaml.MappingStartEvent):
            value = self._mapping(path)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._sequence(path)
        self._document.nodes[path] = YamlNode(place, written)
        return value

    def _refuse_reference(self, event: Any, path: KeyPath) -> None:
        """Report an alias, an anchor or a tag: the values in a file are what a reader sees."""
        if isinstance(event, yaml.AliasEvent):
            hint = "repeat the value, or quote it if it is text that starts with *"
            what = f"the alias *{printable(event.anchor or '')} is not allowed"
            self._report(event, path, what, hint)
        elif event.anchor is not None:
            hint = "delete it, or quote the value if it is text that starts with &"
            self._report(event, path, f"the anchor &{printable(event.anchor)} is not allowed", hint)
        if getattr(event, "tag", None) is not None:
            hint = "delete it, or quote the value if it is text that starts with !"
            self._report(event, path, f"the tag {printable(event.tag)} is not allowed", hint)

    def _scalar(self, event: Any, path: KeyPath) -> Any:
        if event.style:
            return event.value
        try:
            return scalar(event.value)
        except ValueError as error:
            self._report(
                event, path, f"{format_value(event.value)} {error}", "quote it if it is text"
            )
            return None

    def _mapping(self, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not self._loader.check_event(yaml.MappingEndEvent):
            line = self._loader.peek_event().start_mark.line + 1
            key = self._key(path)
            value = self._value((*path, key), line)
            values.setdefault(key, value)
        self._loader.get_event()
        return values

    def _key(self, path: KeyPath) -> str:
        event = self._loader.get_event()
        line = event.start_mark.line + 1
        if not isinstance(event, yaml.ScalarEvent):
            self._stop(line, path, "a key must be text", "quote text that starts with [, {, & or *")
        key = str(event.value)
        self._refuse_reference(event, (*path, key))
        if not event.style and key == "<<":
            self._report(event, (*path, key), "merging with << is not allowed", "repeat the keys")
        elif not event.style and not isinstance(self._scalar(event, (*path, key)), str):
            what = f"the key {key or 'here'} is not text"
            self._report(event, (*path, key), what, f'quote it: "{key}"')
        if (first := self._document.nodes.get((*path, key))) is not None:
            what = f"duplicate key, already at {first.place.where}"
            self._report(event, (*path, key), what, "keep one of them")
        return key

    def _sequence(self, path: KeyPath) -> list[Any]:
        values: list[Any] = []
        while not self._loader.check_event(yaml.SequenceEndEvent):
            values.append(self._value((*path, len(values))))
        self._loader.get_event()
        return values
