"""The command line: the names of the commands, and the parser of their arguments."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Collection, Sequence
from typing import Protocol, cast

from .. import installation

# What each command does, in the module of its name. Only that of the chosen one is imported.
COMMANDS = {
    "submit": "freeze a spec and run it, on Slurm if there is one",
    "sweep": "run many points of one spec, as a job array on Slurm",
    "init": "write a first spec, kit.mk and .gitignore lines into this folder",
    "freeze": "make the run directory only, and print it as JSON",
    "adopt": "make the run directory of this Slurm job (slurm/ddp.sbatch)",
    "status": "list the runs and their states",
    "why": "show why a run waits, ended or is held, and what to do",
    "logs": "show or follow a rank's logs, rank 0 by default; or the first error",
    "report": "show where the time of runs went, and write a page with plots",
    "explain": "what a key of the spec means, its value and where that came from",
    "cancel": "stop a run; only resume continues it",
    "resume": "continue a run that stopped before its end",
    "rehearse": "stop, kill and start again any training, and compare how it ends",
    "compare": "compare a run bit for bit with a reference run",
    "export": "write a checkpoint's weights as safetensors",
    "shell": "print the srun line of a shell on a running rank's node, or run it",
    "clean": "list, or delete, old runs that are over and unused code",
}
# Of these, `| head` may end the output: what they print is all that they do.
ONLY_PRINT = ("status", "why", "logs", "report", "explain")
# What follows `--` is another command, with options of its own: `args.words`.
TAKES_A_COMMAND = ("rehearse",)


class Command(Protocol):
    """What the module of a command has."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser."""

    def command(self, args: argparse.Namespace) -> int:
        """Run the command; returns the exit code."""


def load(name: str) -> Command:
    """Return the module of a command."""
    return cast(Command, importlib.import_module(f".{name}", __package__))


def build_parser(chosen: Collection[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of all commands; only the chosen ones have their arguments."""
    prog = "python -m jobs" if installation.IS_BY_MAKE else "kit"
    parser = argparse.ArgumentParser(prog=prog, description="Run PyTorch training on Slurm.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, about in COMMANDS.items():
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
    chosen, other = [word for word in words if word in COMMANDS][:1], []
    if "--" in words and chosen and chosen[0] in TAKES_A_COMMAND:
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
