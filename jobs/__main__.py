"""The kit's commands: `python -m jobs COMMAND` in a clone, `kit COMMAND` where pip installed them.

In a clone most of them have a make target.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import sys
from collections.abc import Collection, Sequence
from typing import Protocol, cast

from slurm_job_kit.jobs import installation
from slurm_job_kit.jobs.console import discard_output, open_standard_streams, with_time
from slurm_job_kit.jobs.errors import FailedError, UserError

EXIT_USER = 2
EXIT_FAILED = 1
KIT = "slurm_job_kit.jobs"
# The module of each command below `jobs`, and what the command does. Only the module of the chosen
# command is imported.
COMMANDS = {
    "submit": ("commands.submit", "freeze a spec and run it, on Slurm if there is one"),
    "sweep": ("sweep.submit", "run many points of one spec, as a job array on Slurm"),
    "init": ("commands.init", "write a first spec, kit.mk and .gitignore lines into this folder"),
    "freeze": ("commands.freeze", "make the run directory only, and print it as JSON"),
    "adopt": ("commands.adopt", "make the run directory of this Slurm job (slurm/ddp.sbatch)"),
    "status": ("show.status", "list the runs and their states"),
    "why": ("why.why", "show why a run waits, ended or is held, and what to do"),
    "logs": ("show.logs", "show or follow a rank's logs, rank 0 by default; or the first error"),
    "report": ("report.report", "show where the time of runs went, and write a page with plots"),
    "explain": ("show.explain", "what a key of the spec means, its value and where that came from"),
    "completion": ("completion", "print a script with which bash or zsh completes all of this"),
    "cancel": ("commands.cancel", "stop a run; only resume continues it"),
    "resume": ("commands.resume", "continue a run that stopped before its end"),
    "compare": ("commands.compare", "compare a run bit for bit with a reference run"),
    "export": ("commands.export", "write a checkpoint's weights as safetensors"),
    "shell": ("remote.beside_rank", "a shell, a command or the stacks beside a running rank"),
    "clean": ("commands.clean", "list, or delete, what ended and never-started runs do not need"),
}
# Of these, `| head` may end the output: what they print is all that they do.
ONLY_PRINT = ("status", "why", "logs", "report", "explain")
# These also run on another host, over ssh.
OVER_SSH = ("submit", "status", "logs", "why", "cancel", "resume", "report", "sweep")
# What follows `--` is another command, with options of its own: `args.words`.
TAKES_A_COMMAND = ("shell",)


class Command(Protocol):
    """What the module of a command has."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser."""

    def command(self, args: argparse.Namespace) -> int:
        """Run the command; returns the exit code."""


def load(name: str) -> Command:
    """The module of a command."""
    return cast(Command, importlib.import_module(f"{KIT}.{COMMANDS[name][0]}"))


def build_parser(chosen: Collection[str] = ()) -> argparse.ArgumentParser:
    """The parser of all commands; only the chosen ones have their arguments."""
    prog = "python -m jobs" if installation.IS_BY_MAKE else "kit"
    parser = argparse.ArgumentParser(prog=prog, description="Run PyTorch training on Slurm.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, about) in COMMANDS.items():
        command = commands.add_parser(name, help=about, description=about)
        if name in chosen:
            load(name).add_arguments(command)
            if name in OVER_SSH:
                help_of_it = "run it there, over ssh; DIR has the kit (KIT_HOST is the default)"
                command.add_argument("--host", metavar="USER@LOGIN:DIR", help=help_of_it)
    return parser


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The parsed command line. Overrides may stand anywhere; argparse takes them in one place."""
    words = list(sys.argv[1:] if argv is None else argv)
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


def run_on_host(args: argparse.Namespace, argv: Sequence[str] | None) -> int | None:
    """Run the command on the host of --host or KIT_HOST; None where it shall run here.

    A command that came over ssh runs here, whatever its words say.
    """
    caller = os.environ.pop("KIT_CALLER", None)
    chosen = getattr(args, "host", None) or os.environ.get("KIT_HOST")
    if caller is None and (args.command not in OVER_SSH or not chosen):
        return None
    from slurm_job_kit.jobs.remote import host

    if caller is not None:
        host.compare(caller)
        return None
    return host.run(str(chosen), list(sys.argv[1:] if argv is None else argv))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code: 2 for a user's mistake, 1 for a failed action."""
    name = ""
    try:
        args = parse(argv)
        name = args.command
        code = run_on_host(args, argv)
        code = load(name).command(args) if code is None else code
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `| head` has ended: drop the rest of the output
        discard_output()
        return 0 if name in ONLY_PRINT else EXIT_FAILED
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as error:
        from slurm_job_kit.jobs.commands import packages

        names = [*packages.COMMANDS, "submitit", *packages.TRAINER]
        absent = packages.missing(names)
        if not absent or error.name not in ("pydantic_core", "yaml", "submitit"):
            raise
        print(with_time(f"error: {packages.message(absent)}"), file=sys.stderr)
        return EXIT_USER
    except (UserError, FailedError) as error:
        print(with_time(f"error: {error}"), file=sys.stderr)
        return EXIT_USER if isinstance(error, UserError) else EXIT_FAILED
    except OSError as error:
        place = "" if error.filename is None else f"{error.filename}: "
        print(with_time(f"error: {place}{error.strerror or error}"), file=sys.stderr)
        return EXIT_FAILED


def command() -> int:
    """Run one command as the whole process; returns its exit code.

    Submit makes 55,000 objects, most of them in imports, and few are garbage. To look for it took
    a seventh of its CPU time. A run on this machine takes hours: there the collector still works.
    """
    open_standard_streams()
    gc.set_threshold(100_000)
    code = main()
    gc.freeze()  # the interpreter collects once more at its end
    return code


if __name__ == "__main__":
    sys.exit(command())
