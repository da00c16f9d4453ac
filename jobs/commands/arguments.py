"""Arguments that several commands have, and how their values are read."""

import argparse
import json
import os
import shlex
from pathlib import Path

from .. import hooks
from ..base.errors import UserError

OF_COMMAND = ("launch.script", "launch.module", "launch.args")  # what stands behind --
RUN = "run directory, run id, job id or name"


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add RUN, which may be left out: the newest run, or all of them."""
    parser.add_argument("run", nargs="?", metavar="RUN", help=RUN)


def add_source(parser: argparse.ArgumentParser, example: str) -> None:
    """Add a spec with its overrides, or a command behind `--`; `source_of` reads them."""
    about = "a spec, in YAML; or behind -- a command, python train.py WORDS"
    parser.add_argument("config", nargs="?", metavar="CONFIG", help=about)
    add_overrides(parser, example)
    parser.add_argument("--name", help="name of the run, for name=NAME")


def source_of(args: argparse.Namespace) -> tuple[Path, list[str], str]:
    """Return the path of a spec and its overrides; of a command also the text of a spec.

    Raises: UserError where there is neither, or both.
    """
    first, overrides = args.config, overrides_of(args)
    if args.name is not None:
        overrides.append(f"name={json.dumps(args.name, ensure_ascii=False)}")
    if args.words is not None and "=" in (first or "="):
        overrides = [*filter(None, [first]), *overrides]
        text = hooks.spec_text(args.words, args.command)
        for name in (each.partition("=")[0] for each in overrides):
            if name in OF_COMMAND and f"  {name.removeprefix('launch.')}: " in text:
                raise UserError(f"{name}: the command behind -- says it, too", "leave it out")
        return Path("behind --"), overrides, text
    if args.words is not None or first is None:
        what = "a spec or a command behind --, such as -- python train.py"
        raise UserError(f"give {'only one of them: ' * (first is not None)}{what}")
    return path(first), overrides, ""


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=path, metavar="CONFIG", help="a spec, in YAML")
    add_overrides(parser, "train.lr=0.05")


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
    help_of_it = "begin without building model and data once"
    parser.add_argument("--no-check", action="store_true", help=help_of_it)


def add_start(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cluster", choices=["auto", "slurm", "local"], default="auto")


def overrides_of(args: argparse.Namespace) -> list[str]:
    """Return the overrides from words and from --set, which is split as a shell does.

    Raises: UserError for a quote that is not closed.
    """
    try:
        return [*args.overrides, *shlex.split(args.set)]
    except ValueError as error:
        raise UserError(f"--set {args.set}: {error}") from error
