"""The command export: write a checkpoint's weights in a format that other programs read."""

import argparse
import shlex
import subprocess
import sys

from ...base import answer, installation, packages
from ...base.errors import UserError
from ...commands import arguments
from ...contract.checkpoint.names import LATEST, find_checkpoint
from ...contract.spec import Spec
from ...runs import lookup

MAKE = ("", "RUN CHECKPOINT FLAGS")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_run(parser)
    help_of_it = "latest (the default), best, step-N or N"
    parser.add_argument("--checkpoint", default=LATEST, metavar="NAME", help=help_of_it)
    help_of_out = "a file or directory, by default in the run directory"
    parser.add_argument("--out", type=arguments.path, metavar="PATH", help=help_of_out)


def command(args: argparse.Namespace) -> int:
    """Run the trainer's export, which imports torch, from this checkout.

    The Python of the ranks runs it where this one has no torch.
    Raises: UserError if the run has no such checkpoint of the trainer.
    """
    run_dir = lookup.find(args.run)
    launch = Spec.read(run_dir.spec).launch
    if not launch.is_trainer:
        what = f"{run_dir.run_id} is of a script: export needs a checkpoint of the kit's trainer"
        raise UserError(what, f"the script saves where it likes, such as in {run_dir.work}")
    name = find_checkpoint(run_dir.checkpoints, args.checkpoint)
    if args.out is not None and not args.out.parent.is_dir():
        hint = f"mkdir -p {shlex.quote(str(args.out.parent))}"
        raise UserError(f"--out: there is no directory {args.out.parent}\n  hint: {hint}")
    argv = installation.python_m("trainer.plugins.export", str(run_dir.checkpoints / name))
    argv += [f"--out={args.out}"] if args.out else []
    if missing := packages.missing(packages.TRAINER):
        if launch.python is None:
            raise missing
        argv[argv.index(sys.executable)] = launch.python
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True)
    written = done.stdout.strip()
    if done.returncode:
        answer.give(error=f"not exported: exit code {done.returncode}, see stderr")
    elif not answer.give(**run_dir.names(), checkpoint=name, path=written):
        print(written)
    return done.returncode
