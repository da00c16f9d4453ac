"""The command export: write a checkpoint's weights in a format that other programs read."""

import argparse
import os

from ...base import installation
from ...base.errors import UserError
from ...commands import arguments
from ...contract.checkpoint.names import checkpoint_names
from ...contract.spec import Spec
from ...runs import lookup

MAKE = ("", "RUN CHECKPOINT FLAGS")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_run(parser)
    parser.add_argument("--checkpoint", metavar="NAME", help="best, latest or step-XXXXXXXX")
    help_of_out = "a file or directory, by default in the run directory"
    parser.add_argument("--out", type=arguments.path, metavar="PATH", help=help_of_out)


def command(args: argparse.Namespace) -> int:
    """Replace this process by the trainer's export, which imports torch, from this checkout.

    Raises: UserError if the run has no checkpoint of the trainer.
    """
    run_dir = lookup.find(args.run)
    if not Spec.read(run_dir.spec).launch.is_trainer:
        hint = f"its script saves its own checkpoints where it likes, such as in {run_dir.work}"
        raise UserError(
            f"{run_dir.run_id} is the run of a script, and export needs a checkpoint of the kit's "
            f"trainer\n  hint: {hint}"
        )
    if not checkpoint_names(run_dir.checkpoints):
        hint = installation.command("status", run_dir.run_id) + " shows the progress"
        raise UserError(f"{run_dir.run_id} has no checkpoint yet\n  hint: {hint}")
    argv = installation.python_m("trainer.plugins.export", str(run_dir.path))
    argv += [f"--checkpoint={args.checkpoint}"] if args.checkpoint else []
    argv += [f"--out={args.out}"] if args.out else []
    os.execv(argv[0], argv)
