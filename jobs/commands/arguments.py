"""Arguments that several commands have, and how their values are read."""

import argparse
import os
import shlex
from pathlib import Path

from ..base.errors import UserError

RUN = "run directory, run id, job id or name"


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add RUN, which may be left out: the newest run, or all of them."""
    parser.add_argument("run", nargs="?", metavar="RUN", help=RUN)


def add_config(parser: argparse.ArgumentParser) -> None:
    add_config_file(parser)
    add_overrides(parser, "train.lr=0.05")


def add_config_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=path, metavar="CONFIG", help="a spec, in YAML")


def path(text: str) -> Path:
    """Return a path of the command line. Not every shell expands ~ in `make submit CONFIG=~/x`."""
    return Path(os.path.expanduser(text))


def add_overrides(parser: argparse.ArgumentParser, example: str) -> None:
    """Add overrides of the spec, as words and as one text; `overrides_of` reads them."""
    help_of_it = f"such as {example}"
    # With a default argparse does not call it required.
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help=help_of_it)
    parser.add_argument("--set", default="", metavar="TEXT", help="overrides as one text")


def add_no_check(parser: argparse.ArgumentParser) -> None:
    help_of_it = "queue without building model and data once"
    parser.add_argument("--no-check", action="store_true", help=help_of_it)


def add_start(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cluster", choices=["auto", "slurm", "local"], default="auto")
    add_json(parser)


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def overrides_of(args: argparse.Namespace) -> list[str]:
    """Return the overrides from words and from --set, which is split as a shell does.

    Raises: UserError for a quote that is not closed.
    """
    try:
        return [*args.overrides, *shlex.split(args.set)]
    except ValueError as error:
        raise UserError(f"--set {args.set}: {error}") from error
