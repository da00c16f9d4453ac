"""The parser of the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence

from .. import installation
from .catalogue import all_commands, load


def build_parser(chosen: Collection[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of all commands; only the chosen ones have their arguments."""
    prog = "python -m jobs" if installation.IS_BY_MAKE else "kit"
    parser = argparse.ArgumentParser(prog=prog, description="Run PyTorch training on Slurm.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, about in all_commands().items():
        command = commands.add_parser(name, help=about, description=about)
        if name in chosen:
            load(name).add_arguments(command)
    return parser


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line with overrides anywhere; argparse takes them in one place."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["make"]:  # kit.mk
        from . import make_words

        words = make_words.words_of(words[1])
    chosen, other = [word for word in words if word in all_commands()][:1], []
    if "--" in words and chosen and hasattr(load(chosen[0]), "TAKES_A_COMMAND"):
        at = words.index("--")
        words, other = words[:at], words[at + 1 :]
    parser = build_parser(chosen)
    args, rest = parser.parse_known_args(words)
    if rest and ("overrides" not in args or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        args.overrides = [*args.overrides, *rest]
    if other:
        args.words = other
    return args
