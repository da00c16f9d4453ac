"""The command freeze: make a run directory without starting it; for plain torchrun and scripts."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from .. import hooks
from ..base import answer
from ..config.load import load
from ..contract.rundir import RunDir
from ..runs.freeze import freeze
from . import arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_config(parser)


def command(args: argparse.Namespace) -> int:
    """Freeze a spec and print the run directory; returns the exit code."""
    run_dir = frozen(args.config, arguments.overrides_of(args))
    if not answer.give(run_dir=str(run_dir.path)):
        print(run_dir.path)
    return 0


def frozen(config: Path, overrides: Sequence[str]) -> RunDir:
    """Make a run directory of a spec; nothing is queued. Raises: UserError, FailedError."""
    loaded = load(config, overrides)
    with freeze(loaded) as run_dir:
        hooks.before_queue({run_dir: loaded}, is_on_slurm=False, is_checked=False)
    return run_dir
