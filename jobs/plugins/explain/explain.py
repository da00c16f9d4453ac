"""The command explain: what a key of the spec means, its value, and where the value came from."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...base import answer
from ...base.console import display_path, printable
from ...base.errors import UserError
from ...commands import arguments, table
from ...config.keys import Key, keys, sections, type_name, unknown_key_hint
from ...config.load import load
from ...config.loaded import LoadedSpec
from ...config.validate import BOUNDS
from ...runs import frozen_spec, lookup

MAKE = ("", "KEY CONFIG RUN SET FLAGS")
ONLY_PRINTS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    help_of_it = "a key or section (train.lr, train), a CONFIG or RUN, KEY=VALUE"
    parser.add_argument("overrides", nargs="*", metavar="WORD", help=help_of_it)
    parser.add_argument("--set", default="", metavar="TEXT", help="KEY=VALUE ... as one text")


def command(args: argparse.Namespace) -> int:
    """Print the keys that the words name; returns 0. Raises: UserError, SpecError."""
    topic, source, overrides = question_of(arguments.overrides_of(args))
    loaded = spec_of(source, overrides) if source else None
    # The empty topic is that of all keys.
    chosen = [k for k in keys().values() if topic in ("", k.dotted, *k.path[:-1])]
    facts = [facts_of(key, loaded) for key in chosen]
    if answer.give(keys=facts):
        return 0
    rows = [{name.upper(): _as_text(value) for name, value in each.items()} for each in facts]
    if len(rows) == 1 and chosen[0].dotted == topic:
        print(table.stacked(rows, [*rows[0]]))
        return 0
    columns = ["KEY", *(("TYPE", "DEFAULT") if loaded is None else ("VALUE", "FROM"))]
    print(table.text(rows, [*columns, "MEANING"] if topic or loaded is None else columns))
    return 0


def question_of(words: Sequence[str]) -> tuple[str, str, list[str]]:
    """Return key or section, spec file or run ("" for none), overrides. Raises: UserError."""
    changes = [word for word in words if "=" in word and not Path(word).is_file()]
    topics = [word for word in words if word not in changes and topic_of(word)]
    sources = [word for word in words if word not in (*changes, *topics)]
    for kind, found in {"key or section": topics, "CONFIG or RUN": sources}.items():
        if len(found) > 1:
            raise UserError(f"{' and '.join(found)}: explain takes one {kind}")
    if changes and not sources:
        raise UserError(f"{changes[0]} changes a spec", "name its CONFIG or RUN, too")
    return topic_of("".join(topics)), "".join(sources), changes


def topic_of(word: str) -> str:
    """Return the key or section that a word names, or ""; a name inside a mapping is its key's."""
    if word in sections():
        return word
    names = [key.dotted for key in keys().values()]
    return next((name for name in names if word == name or word.startswith(f"{name}.")), "")


def spec_of(source: str, overrides: Sequence[str]) -> LoadedSpec:
    """Return the spec of a file or run. Raises: SpecError, UserError for a word that is neither."""
    if source.endswith((".yaml", ".yml")) or Path(source).is_file():
        return load(Path(source), overrides)
    try:
        return frozen_spec.reload(lookup.find(source), overrides)
    except lookup.NoSuchRunError:
        hint = unknown_key_hint(tuple(source.split(".")))
        raise UserError(f"{source} is no key, section, CONFIG or RUN", hint) from None


def value_and_origin(key: Key, loaded: LoadedSpec) -> tuple[Any, str]:
    """Return the value of a key in a spec, and the places of the user's input that set it."""
    value: Any = loaded.spec
    for name in key.path:
        value = getattr(value, name)
    nodes = loaded.document.nodes
    inside = [node.place for path, node in nodes.items() if path[: len(key.path)] == key.path]
    if not inside or key.path not in nodes:
        return value, "default"
    # The first line of each file (`configs/x.yaml:7`), and each override.
    places: dict[str, str] = {}
    for where in (nodes[key.path].place.where, *(place.where for place in inside)):
        kind, _, change = where.partition(" ")
        shown = f"command line: {change}" if kind == "override" else display_path(Path(where))
        places.setdefault(where.rpartition(":")[0] or where, shown)
    return value, ", ".join(places.values())


def _as_text(value: Any) -> str:
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def facts_of(key: Key, loaded: LoadedSpec | None) -> dict[str, Any]:
    """Return what there is to say of a key, with its value in a spec."""
    limits = ((BOUNDS[name][1], limit) for name, limit in key.limits.items())
    words = " and ".join(f"{words} {limit}" for words, limit in limits if words)
    kind = ", ".join(filter(None, [type_name(key.type), words]))
    facts = {"key": key.dotted, "type": kind, "default": key.default, "meaning": key.description}
    if loaded is not None:
        facts["value"], facts["from"] = value_and_origin(key, loaded)
    return facts
