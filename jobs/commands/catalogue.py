"""The commands, each with its module, and the command line. Those of plugins come last."""

import argparse
import difflib
import importlib
import re
import shlex
import sys
from pathlib import Path
from typing import NoReturn, Protocol, cast

from ..base import installation
from ..base.errors import UserError
from ..plugins import PLUGINS

# What each command does, in the module of its name. Only that of the chosen one is imported.
COMMANDS = {
    "submit": "freeze a spec and run it, on Slurm if there is one",
    "freeze": "make the run directory only, and print it",
    "adopt": "make the run directory of this Slurm job (slurm/ddp.sbatch)",
    "cancel": "stop a run; only resume continues it",
    "resume": "continue a run that stopped before its end",
}
DAILY = ("submit", "status", "why", "logs", "cancel", "resume")
# What a user types as a command without `--`.
_PROGRAM = re.compile(r"python[\d.]*|torchrun|accelerate|srun|bash|.*\.py")


class Command(Protocol):
    """What the module of a command has: the first two functions; the rest where it has it.

    MAKE: the variables that its make target needs, and those that it takes; of one with `...` the
    value is several words. Without it the command has no make target.
    ONLY_PRINTS: what it prints is all that it does, so `| head` may end it. TAKES_A_COMMAND: what
    follows `--` is another command, in `args.words`.
    """

    MAKE: tuple[str, str]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser."""

    def command(self, args: argparse.Namespace) -> int:
        """Run the command; returns the exit code."""


def all_commands() -> dict[str, str]:
    """Return each command with what it does: those of each day first, those of plugins last."""
    of_plugins = (plugin.commands for plugin in PLUGINS.values())
    found = COMMANDS | {name: about for each in of_plugins for name, about in each.items()}
    return {name: found[name] for name in (*DAILY, *found) if name in found}


def load(name: str) -> Command:
    """Return the module of a command."""
    plugins = (f"..plugins.{plugin}" for plugin, each in PLUGINS.items() if name in each.commands)
    return cast(Command, importlib.import_module(f"{next(plugins, '')}.{name}", __package__))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        raise UserError(message)


def chosen(words: list[str]) -> tuple[str, bool]:
    """Return the command of a command line ("" without one), and whether a program reads it."""
    own = words[: words.index("--")] if "--" in words else words
    return next((word for word in words if word in all_commands()), ""), "--json" in own


def parse(words: list[str]) -> argparse.Namespace:
    """Return the parsed command line, in which overrides stand anywhere. Raises: UserError."""
    name, _ = chosen(words)
    prog = "python -m jobs" if installation.IS_BY_MAKE else "kit"
    parser = _Parser(prog=prog, description="Run PyTorch training on Slurm.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for each, about in all_commands().items():
        commands.add_parser(each, help=about, description=about, allow_abbrev=False)
    other = None
    if name:
        of_command = commands.choices[name]
        of_command.add_argument("--json", action="store_true", help="print one JSON object")
        load(name).add_arguments(of_command)
        if hasattr(load(name), "TAKES_A_COMMAND"):
            words, other = _divided(words, f"{prog} {name}")
    args, rest = parser.parse_known_args(words or ["--help"])
    if rest and ("overrides" not in args or any(word.startswith("-") for word in rest)):
        from ..config.keys import keys  # other command lines need no spec

        known = re.findall(r"--[\w-]+", commands.choices[name].format_help())
        words = [word.split("=")[0] for word in rest]
        of_sbatch = [word.lstrip("-").replace("-", "_") for word in words]
        near = [f"{key.dotted}=..." for key in keys().values() if key.path[-1] in of_sbatch]
        near += [x for word in words for x in difflib.get_close_matches(word, known, 1)]
        near += [x.lstrip("-") for x in rest if re.match(r"--\w+\.\w+=", x)]
        hint = f"\n  hint: did you mean {near[0]}?" if near else ""
        parser.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
    if rest:
        args.overrides = [*args.overrides, *rest]
    args.words = other
    return args


def _divided(words: list[str], start: str) -> tuple[list[str], list[str] | None]:
    """Return the words before and behind `--`; None without it. Raises: UserError."""
    if "--" in words:
        at = words.index("--")
        return words[:at], words[at + 1 :]
    found = (n for n, word in enumerate(words[1:], 1) if _PROGRAM.fullmatch(Path(word).name))
    if (at := next(found, 0)) and "=" not in words[at] and not words[at - 1].startswith("--"):
        first, own = words[at], words[at:]
        line = shlex.join(["python", *own] if first.endswith(".py") else own)
        raise UserError(f"{first} is no spec", f"write -- before it: {start} -- {line}")
    return words, None
