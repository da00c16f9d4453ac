"""`KEY=VALUE` arguments of the command line: each is parsed and merged into a document."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..contract.problems import CONTROL, KeyPath, Place, Problem
from ..contract.spec import Scalar
from . import yaml_reader
from .keys import as_whole, is_text, keys, type_at
from .yaml_reader import Document, YamlNode

_QUOTE = "quote the value for YAML as well: KEY='\"VALUE\"'"
_CONTROL = re.compile(f"[{CONTROL}]")


def apply(document: Document, arguments: Sequence[str]) -> None:
    """Merge each `KEY=VALUE` into the document; a wrong one becomes one of its problems."""
    for number, argument in enumerate(arguments):
        parsed = parse(argument, number)
        problem = parsed if isinstance(parsed, Problem) else merge(document, *parsed)
        if problem is not None:
            document.problems.append(problem)


def parse(argument: str, number: int) -> tuple[KeyPath, Document] | Problem:
    """Return the key and the value in one argument, or what is wrong with it.

    The value is parsed by the same rules as a value of the file.

    number: the argument's position among all overrides; problems are sorted by it.
    """
    name, equals, written = argument.partition("=")
    place = Place(f"override {argument[:100]}", (1, number))
    if not equals:
        hint = "write KEY=VALUE without spaces, such as slurm.nodes=2"
        return Problem((), "is not KEY=VALUE", hint, place=place)
    path: KeyPath = tuple(name.split("."))
    is_long = len(argument.encode(errors="replace")) > yaml_reader.MAX_BYTES
    if is_long or not all(path) or _CONTROL.search(argument):
        hint = "write it as slurm.nodes=2: a line, below 64 KiB, without control characters"
        return Problem((), "cannot be read", hint, place=place)
    # An empty value is null.
    document = yaml_reader.parse(written, lambda _: place) if written.strip() else Document()
    if document.problems:
        problem = document.problems[0]
        return replace(problem, path=path, hint=_QUOTE if "quote" in problem.hint else problem.hint)
    nodes = {path + at: node for at, node in {(): YamlNode(place), **document.nodes}.items()}
    return path, Document(typed(document.values, path, nodes, is_override=True), nodes)


def typed(
    value: Any, path: KeyPath, nodes: dict[KeyPath, YamlNode], is_override: bool = False
) -> Any:
    """Return the value with its numbers as their keys take them: 1e5 for a whole one is 100000.

    `1e-3` is the text "1e-3" where text is meant, as in a list or mapping of text.
    """
    if isinstance(value, dict):
        return {
            name: typed(item, (*path, name), nodes, is_override) for name, item in value.items()
        }
    if isinstance(value, list):
        return [typed(item, (*path, at), nodes, is_override) for at, item in enumerate(value)]
    written = nodes[path].written if path in nodes else None
    if value is None or written is None:
        return value
    if is_text(path, is_override) and not isinstance(value, bool):
        return written
    if len(path) < 2 or path in keys() or type_at(path) not in (str, Scalar):
        return as_whole(value, type_at(path))
    is_sbatch_arg = path[:2] == ("slurm", "sbatch_args")
    keeps_meaning = isinstance(value, bool) or str(value) == written
    return value if is_sbatch_arg and keeps_meaning else written


def merge(document: Document, path: KeyPath, value: Document) -> Problem | None:
    """Set a key in the document, or return why that is impossible."""
    nodes = {path + at[len(path) :]: node for at, node in value.nodes.items()}
    own = nodes[path]
    parent = document.values
    for depth, name in enumerate(path[:-1], 1):
        if parent.get(name) is None:
            parent[name] = {}
            document.nodes[path[:depth]] = YamlNode(own.place)
        parent = parent[name]
        if not isinstance(parent, dict):
            hint = "override the key itself, such as launch.args=[a, b]"
            return Problem(path[:depth], "has no keys of its own", hint, place=own.place)
    parent[path[-1]] = value.values
    for at in [at for at in document.nodes if at[: len(path)] == path]:
        del document.nodes[at]
    document.nodes.update(nodes)
    return None
