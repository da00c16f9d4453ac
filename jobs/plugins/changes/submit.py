"""The command submit with --from: begin a run with the whole state of another one."""

import argparse

from ...commands import arguments, submit
from ...config.load import load

MAKE = ("CONFIG", "SET FROM YES FLAGS CMD")
TAKES_A_COMMAND = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    submit.add_arguments(parser)
    help_of_from = "begin with the whole state of a run, @step-N or @best of its checkpoints"
    parser.add_argument("--from", dest="origin", metavar="RUN[@NAME]", help=help_of_from)
    help_of_yes = "also if the spec differs from that run's"
    parser.add_argument("--yes", action="store_true", help=help_of_yes)


def command(args: argparse.Namespace) -> int:
    """Run submit; returns the exit code. Raises: UserError, FailedError; then there is no run."""
    if args.origin is None:
        return submit.command(args)
    from . import origin

    begun = origin.find(args.origin, args.yes)
    loaded = load(*arguments.source_of(args))
    begun.check(loaded.spec)
    return submit.run(loaded, args, begun.begin)
