"""The command explain: what a key of the spec means, its value, and where the value came from."""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..console import display_path
from ..errors import UserError
from ..problems import printable
from ..runs import lookup
from . import arguments
from .views import table

if TYPE_CHECKING:
    from ..config.keys import Key
    from ..config.load import LoadedSpec

TOP = "top"  # the topic of the keys in no section
MAX_NEAR = 3


@dataclass(frozen=True)
class Question:
    """What the words of the command line mean.

    topic: a key or a section; "" for all keys.
    source: the spec file or the run; "" for none.
    """

    topic: str = ""
    source: str = ""
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class KeyValue:
    """The value of a key as YAML text, and where it came from."""

    value: str
    origin: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the words of explain, in any order."""
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="WORD",
        help="a key or section (train.lr, train), a CONFIG or RUN, KEY=VALUE",
    )
    parser.add_argument("--set", default="", metavar="TEXT", help="KEY=VALUE ... as one text")


def command(args: argparse.Namespace) -> int:
    """Print the keys that the words name; returns 0. Raises: UserError, SpecError."""
    from ..config.keys import keys

    asked = question_of(arguments.overrides_of(args))
    loaded = _load(asked)
    chosen = [key for key in keys().values() if is_asked(key, asked.topic)]
    if len(chosen) == 1 and chosen[0].dotted == asked.topic:
        print_key(chosen[0], loaded)
    else:
        print_keys(chosen, loaded, has_meaning=bool(asked.topic) or loaded is None)
    return 0


def question_of(words: Iterable[str]) -> Question:
    """Return what each word means: KEY=VALUE, a key or section, a spec file or a run.

    Raises: UserError for a second word of a kind, and for a word that is nothing of these.
    """
    topic = source = ""
    overrides = []
    for word in words:
        if "=" in word and not Path(word).is_file():
            overrides.append(word)
        elif near_topic := topic_of(word):
            if topic:
                raise UserError(f"{topic} and {word}: explain takes one key or section")
            topic = near_topic
        else:
            if source:
                raise UserError(f"{source} and {word}: explain takes one CONFIG or RUN")
            source = word
    if source and not is_file(source):
        try:
            lookup.find(source)
        except lookup.NoSuchRunError:
            raise UserError(_unknown(source)) from None
    if overrides and not source:
        hint = "name the CONFIG or RUN, too, such as configs/resnet.yaml"
        raise UserError(
            f"{printable(overrides[0])} changes a spec, but none is named\n  hint: {hint}"
        )
    return Question(topic, source, tuple(overrides))


def topic_of(word: str) -> str:
    """Return the key or section that a word names, or ""; a name inside a mapping is its key's."""
    from ..config.keys import keys, sections

    if word == TOP or word in sections():
        return word
    names = [key.dotted for key in keys().values()]
    return next((name for name in names if word == name or word.startswith(f"{name}.")), "")


def is_file(word: str) -> bool:
    """Return whether a word is meant as a spec file: it ends as one, or it is a file."""
    return word.endswith((".yaml", ".yml")) or Path(word).is_file()


def is_asked(key: Key, topic: str) -> bool:
    """Return whether a key is of a topic, as in `Question`."""
    section = key.path[0] if len(key.path) > 1 else TOP
    return topic in ("", key.dotted, section)


def _unknown(word: str) -> str:
    from ..config.keys import keys, sections, unknown_key_hint

    names = [key.dotted for key in keys().values()]
    last = {name.rpartition(".")[2]: name for name in names}
    runs = {run_dir.path.parent.name for run_dir in lookup.all_runs()}
    near = difflib.get_close_matches(word, [*filter(None, sections()), *names, *runs], n=MAX_NEAR)
    same = [name for name in names if name.rpartition(".")[2] == word]
    similar = [last[name] for name in difflib.get_close_matches(word, last, n=MAX_NEAR)]
    suggestions = list(dict.fromkeys(same or [*near, *similar]))[:MAX_NEAR]
    hint = f"did you mean {' or '.join(suggestions)}?"
    if not suggestions:
        hint = unknown_key_hint(tuple(word.split(".")))
    return f"{printable(word)} is no key, section, CONFIG or RUN\n  hint: {hint}"


def _load(asked: Question) -> LoadedSpec | None:
    """Return the spec of a question; None without one. Raises: SpecError, UserError."""
    if not asked.source:
        return None
    from ..config.load import load
    from ..runs import spec_changes

    if is_file(asked.source):
        return load(Path(asked.source), asked.overrides)
    return spec_changes.reload(lookup.find(asked.source), asked.overrides)


def key_value(key: Key, loaded: LoadedSpec) -> KeyValue:
    """Return the value of a key in a spec, and the places of the user's input that set it."""
    from .views.chosen import chosen_value

    value: Any = loaded.spec
    for name in key.path:
        value = getattr(value, name)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = printable(text)
    if meant := chosen_value(loaded.spec, key):
        text += f" -> {meant}"
    nodes = loaded.document.nodes
    inside = [node.place for path, node in nodes.items() if path[: len(key.path)] == key.path]
    if not inside or key.path not in nodes:
        return KeyValue(text, "default")
    places = [nodes[key.path].place, *(place for place in inside if place.order[0] == 1)]
    return KeyValue(text, ", ".join(dict.fromkeys(_place(place.where) for place in places)))


def _place(where: str) -> str:
    """Return `configs/x.yaml:7`, or `command line: train.lr=0.3` for an override."""
    kind, _, change = where.partition(" ")
    if kind == "override":
        return f"command line: {change}"
    file, _, line = where.rpartition(":")
    return f"{display_path(Path(file))}:{line}"


def print_key(key: Key, loaded: LoadedSpec | None) -> None:
    """Print all that is known of one key, a line for each fact."""
    from ..config.keys import default_text, limited_type_name

    lines = {
        "type": limited_type_name(key),
        "default": default_text(key) or "none",
        "meaning": key.description,
    }
    if loaded is not None:
        value = key_value(key, loaded)
        lines |= {"value": value.value, "from": value.origin}
    print(key.dotted)
    for name, text in lines.items():
        print(f"  {name:<8} {text}")


def print_keys(chosen: Sequence[Key], loaded: LoadedSpec | None, has_meaning: bool) -> None:
    """Print a table of keys."""
    from ..config.keys import default_text, limited_type_name

    columns = ["KEY", "TYPE", "DEFAULT"] if loaded is None else ["KEY", "VALUE", "FROM"]
    rows = []
    for key in chosen:
        row = {"KEY": key.dotted}
        if loaded is None:
            row["TYPE"] = limited_type_name(key).removeprefix("a ")
            row["DEFAULT"] = default_text(key)
        else:
            value = key_value(key, loaded)
            row |= {"VALUE": value.value, "FROM": value.origin}
        rows.append(row | {"MEANING": key.description})
    print(table.text(rows, [*columns, "MEANING"] if has_meaning else columns))
