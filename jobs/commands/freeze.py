"""The command freeze: make a run directory without starting it; for plain torchrun and scripts."""

import argparse
import json

from .. import hooks
from ..config.load import load
from ..runs.freeze import freeze
from . import arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of freeze."""
    arguments.add_config(parser)


def command(args: argparse.Namespace) -> int:
    """Freeze a spec and print the run directory as JSON; returns the exit code."""
    loaded = load(args.config, arguments.overrides_of(args))
    with freeze(loaded) as run_dir:
        hooks.before_queue({run_dir: loaded}, is_on_slurm=False, is_checked=False)
        print(json.dumps({"run_dir": str(run_dir.path)}))
    return 0
