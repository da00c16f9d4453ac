"""The command compare: whether two runs ended with equal bits."""

from __future__ import annotations

import argparse

from ..runs import compare, lookup
from . import arguments

MAKE = ("RUN WITH", "")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of compare."""
    parser.add_argument("run", metavar="RUN", help=arguments.RUN)
    help_of_it = "the reference: a run without interruption"
    parser.add_argument("reference", metavar="REFERENCE", help=help_of_it)


def command(args: argparse.Namespace) -> int:
    """Print the differences of two runs, or that there are none; returns 1 if there are some."""
    run_dir, reference = lookup.find(args.run), lookup.find(args.reference)
    differences = compare.compare(run_dir, reference)
    print("\n".join(differences) or compare.summary(run_dir, reference))
    return 1 if differences else 0
