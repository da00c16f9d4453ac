"""Parses strict YAML 1.2: one document of plain values, with the place of each key.

PyYAML only makes nodes of the text here. Its loaders follow YAML 1.1, where `no` is false and
`4:00:00` is a number, and they take the last of two equal keys; its events have the tags that are
refused here. Merge keys (<<) are those of YAML 1.1. Source: YAML 1.2.2, 10.3 Core Schema.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from ..base.console import quantity
from ..contract.problems import CONTROL, KeyPath, Place, Problem, format_value

MAX_BYTES = 64 * 1024  # no value then exceeds Linux's limit for one argument (128 KiB)
MAX_DEPTH = 32  # every recursion over a document then stays far below Python's limit
MAX_VALUES = 20_000  # a few aliases of aliases make millions
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
_MINUTES = re.compile(r" \d+:\d+$", re.MULTILINE)  # quotes say that a user meant them
_UNESCAPED = 'write it as an escape in "double quotes" if you need it'
# Spaces, dashes, quotes and wide signs of word processors and web pages, and what nobody sees.
_LOOKALIKE = re.compile("[\u00a0\u00ad\u2000-\u2015\u2018-\u206f\u2212\u3000\uff01-\uff5e]")
_TYPE_IT = 'type a plain space, -, : or "; text in "..." may have it'
_NO_PAIR = re.compile(r"([A-Za-z_][\w.-]*)(?:(?::(?!//)| ?= ?)(\S+)| +([^\s:]+)$)")
_CLOSE = {"{": "}", "[": "]", '"': '"', "'": "'"}
_BEHIND_KEY = "a key ends with a colon and a space"
_CONTENT = re.compile(r" *(\t|[^ #])")
_OPENS = re.compile(r":\s*(#.*)?$")  # a block
# How PyYAML and libyaml describe a line that is in no block.
_IN_NO_BLOCK = re.compile("expected (key|'-' |'?<)")


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
    known: Sequence[Problem] = ()  # they do not count

    def place(self, path: KeyPath) -> Place:
        """Return the place of a key, or of the nearest key around it."""
        while path not in self.nodes and path:
            path = path[:-1]
        return self.nodes[path].place if path in self.nodes else Place("")


def scalar(written: str) -> Any:
    """Return the value of an unquoted scalar. Raises: ValueError for over 64 bits."""
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
    reader = _Reader(place_of, document)
    if wrong := _CONTROL.search(text):
        line = text.count("\n", 0, wrong.start()) + 1
        reader.report(line, (), f"the character U+{ord(wrong[0]):04X} is not allowed", _UNESCAPED)
        return document
    try:
        document.values = reader.value(_compose(text, yaml.parse(text, LOADER)), ())
    except (yaml.YAMLError, ValueError) as error:  # SafeLoader: ValueError of "\\U00110000"
        line, what, hint = _mistake(text, error)
        reader.report(line, (), what, hint)
    return document


def _compose(text: str, events: Iterable[Any]) -> yaml.Node:
    """Return the node of a text in which values are what a reader sees. Raises: YAMLError."""
    anchors: list[str | None] = []  # of the lists and mappings around an event
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            anchors.append(event.anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchors.pop()
        wrong = {
            "tags are not allowed": getattr(event, "tag", None),
            f"nested over {MAX_DEPTH} levels": len(anchors) > MAX_DEPTH,
            "an alias in its own value": isinstance(event, yaml.AliasEvent)
            and event.anchor in anchors,
        }
        for what in filter(wrong.get, wrong):
            raise yaml.MarkedYAMLError(problem=what, problem_mark=event.start_mark)
    if (root := yaml.compose(text, LOADER)) is None:
        raise yaml.MarkedYAMLError(problem="it is empty")
    return root


def text_of(values: dict[str, Any]) -> str:
    """Return values as YAML; as JSON, which is YAML 1.2, where PyYAML would not quote 1e5."""
    text = str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=2**31))
    read = parse(text, lambda _: Place())
    is_same = read.values == values and not (read.problems or _MINUTES.search(text))
    return text if is_same else f"{json.dumps(values, indent=2, ensure_ascii=False)}\n"


def as_pair(text: str) -> str:
    """Return `lr: 0.1` for `lr 0.1` or text that begins with `lr:0.1` or `lr=0.1`; or ""."""
    found = _NO_PAIR.match(text.strip())
    return f"{found[1]}: {found[2] or found[3]}" if found else ""


def _lookalike(text: str) -> str:
    """Return the first character that only looks like a space, dash or quote; empty for none."""
    found = _LOOKALIKE.search(text)
    return f"U+{ord(found[0]):04X} ({unicodedata.name(found[0]).lower()})" if found else ""


def _mistake(text: str, error: Exception) -> tuple[int, str, str]:
    """Return the line of what is not YAML, what is wrong there, and a hint.

    PyYAML gives up at the mistake, or at the next line that has content.
    """
    lines = text.rstrip().splitlines()
    context: Any = getattr(error, "context_mark", None)
    mark = getattr(error, "problem_mark", None) or context
    end = min(mark.line + 1, len(lines)) if mark else 1
    opens = lines[context.line][context.column] if context and mark.line > context.line else ""
    if close := _CLOSE.get(opens):
        hint = f"write {close} at its end" + ", and a comma between its items" * (opens in "{[")
        return context.line + 1, f"the {opens} of line {context.line + 1} is not closed", hint
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "it ends early"
    numbered = [(n, x) for n, x in enumerate(lines[:end], 1) if _CONTENT.match(x)][-2:]
    for number, line in reversed(numbered):
        if line.lstrip(" ").startswith("\t"):
            return number, f"line {number} begins with a tab", "indent with spaces"
        if char := _lookalike(line):
            return number, f"line {number} has {char} in it", _TYPE_IT
        if pair := as_pair(line):
            return number, _BEHIND_KEY, f"write {pair}"
    if len(numbered) == 2:
        (above, before), (number, line) = numbered
        fill = " " if line.lstrip().startswith("-") else " -"  # `- a: 1` has its key below `a`
        was, now = (len(each) - len(each.lstrip(fill)) for each in (before, line))
        is_deeper = now > was and "mapping values" in reason and not _OPENS.search(before)
        if is_deeper or (now != was and _IN_NO_BLOCK.search(reason)):
            what = f"line {number} is indented by {quantity(now, 'space')}, line {above} by {was}"
            return number, what, "keys of one section begin in the same column, and so do items"
    hint = "quote text that holds any of : # { } [ ] , & * ! | > % @"
    return end, f"this is not YAML: {reason}", hint


class _Reader:
    """Fills a document from PyYAML's events and nodes."""

    def __init__(self, place_of: Callable[[int], Place], document: Document) -> None:
        self._place_of = place_of
        self._document = document

    def report(self, line: int, path: KeyPath, what: str, hint: str) -> None:
        problem = Problem(path, what, hint, place=self._place_of(line))
        self._document.problems.append(problem)

    def value(self, node: yaml.Node, path: KeyPath, line: int | None = None) -> Any:
        """Return the value of a node and keep the nodes of its keys. line: of its own key.

        The value of an alias has the line of its anchor, where it stands.
        """
        first = node.start_mark.line + 1
        line = min(line or first, first)
        if len(path) > MAX_DEPTH or len(self._document.nodes) > MAX_VALUES:
            what = f"{MAX_VALUES} values, or nested over {MAX_DEPTH} levels"
            raise yaml.MarkedYAMLError(
                problem=f"aliases make over {what}", problem_mark=node.start_mark
            )
        written = node.value if isinstance(node, yaml.ScalarNode) and not node.style else None
        value = node.value
        if isinstance(node, yaml.MappingNode):
            value = self._mapping(node, path)
        elif isinstance(node, yaml.SequenceNode):
            value = [self.value(item, (*path, n)) for n, item in enumerate(node.value)]
        elif written is not None:
            if node.end_mark.line > node.start_mark.line and " - " in written:
                what, hint = "goes over several lines", "begin each item of a list in one column"
                self.report(line, path, f"{format_value(written)} {what}", hint)
            value = self._scalar(written, path, first)
        self._document.nodes[path] = YamlNode(self._place_of(line), written)
        return value

    def _scalar(self, written: str, path: KeyPath, line: int) -> Any:
        if char := _lookalike(written):
            self.report(line, path, f"{format_value(written)} has {char} in it", _TYPE_IT)
        try:
            return scalar(written)
        except ValueError as error:
            self.report(line, path, f"{format_value(written)} {error}", "quote it if it is text")
            return None

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        own = dict.fromkeys(x for x in node.value if x[0].tag != "tag:yaml.org,2002:merge")
        yaml.constructor.SafeConstructor().flatten_mapping(node)  # puts what << merges before own
        last = {str(pair[0].value): pair for pair in node.value}  # which counts
        node.value = [*own, *(pair for pair in last.values() if pair not in own)]
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                hint = "quote text that starts with [, {, & or *"
                self.report(line, path, "a key must be text", hint)
                continue
            key = key_node.value
            at, is_plain = (*path, key), not key_node.style
            if is_plain and (not value_node.value or "{" in key) and (pair := as_pair(key)):
                self.report(line, at, _BEHIND_KEY, f"write {pair}")
            elif is_plain and not isinstance(self._scalar(key, at, line), str):
                hint = f'quote it: "{key}"' if value_node.value else "a decimal number has a point"
                self.report(line, at, f"the key {key or 'here'} is not text", hint)
            if (first := self._document.nodes.get(at)) is not None:
                what = f"duplicate key, already at {first.place.where}"
                self.report(line, at, what, "keep one of them")
            values.setdefault(key, self.value(value_node, at, line))
        return values
