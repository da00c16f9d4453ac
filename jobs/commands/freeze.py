"""The command freeze: make a run directory without starting it; for plain torchrun and scripts."""

from __future__ import annotations

import argparse
import json

from ..config.load import load
from ..runs.freeze import freeze
from . import arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of freeze."""
    arguments.add_config(parser)


def command(args: argparse.Namespace) -> int:
    """Freeze a spec and print the run directory as JSON; returns the exit code."""
    with freeze(load(args.config, arguments.overrides_of(args))) as run_dir:
        print(json.dumps({"run_dir": str(run_dir.path)}))
    return 0
