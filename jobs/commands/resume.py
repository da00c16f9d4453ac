"""The command resume: continue a run that was held, cancelled, interrupted or lost, or a group."""

from __future__ import annotations

import argparse

from ..runs import lookup
from . import arguments, catalogue
from .continuing import Request, resume

MAKE = ("", "RUN SET CODE CHECKPOINT YES FLAGS")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of resume."""
    arguments.add_run(parser)
    arguments.add_overrides(parser, "slurm.time=8:0:0")
    arguments.add_start(parser)
    help_of_yes = "change what results depend on, too"
    parser.add_argument("--yes", action="store_true", help=help_of_yes)
    parser.add_argument("--code", action="store_true", help="freeze the checkout anew first")
    parser.add_argument("--checkpoint", metavar="NAME", help="go on from best, step-N or N")
    parser.add_argument(
        "--all-nodes", action="store_true", help="use nodes again that were left out as suspects"
    )
    arguments.add_no_check(parser)


def command(args: argparse.Namespace) -> int:
    """Run resume; returns the exit code."""
    overrides = arguments.overrides_of(args)
    if args.run is not None and "=" in args.run:  # RUN is left out: the newest run
        overrides = [args.run, *overrides]
        args.run = None
    request = Request(
        *(overrides, args.cluster, args.yes, args.code, args.checkpoint),
        is_checked=not args.no_check,
        takes_all_nodes=args.all_nodes,
    )
    if (group := lookup.find_group(args.run)) is not None:
        return catalogue.maker_of(group).resume_all(group, request, args.json)
    return resume(lookup.find(args.run), request, args.json)
