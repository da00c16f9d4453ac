"""The command export: write a checkpoint in a format that other programs read."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from .. import installation
from ..attempt.close import write_missing_result
from ..checkpoint.names import checkpoint_names
from ..errors import UserError
from ..rundir import RunDir
from ..runs import lookup, state
from . import arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of export."""
    arguments.add_run(parser)
    parser.add_argument("--checkpoint", metavar="NAME", help="best, latest or step-XXXXXXXX")
    help_of_out = "a file or directory, by default in the run directory"
    parser.add_argument("--out", type=arguments.path, metavar="PATH", help=help_of_out)
    help_of_dcp = "weights and optimizer for torch.distributed.checkpoint, as a directory"
    parser.add_argument("--dcp", action="store_true", help=help_of_dcp)


def command(args: argparse.Namespace) -> int:
    """Run export, in place of this process."""
    run_dir = lookup.find(args.run)
    write_missing_result(state.read(run_dir))  # the trainer's export reads it
    return export(run_dir, args.checkpoint, args.out, args.dcp)


def export(run_dir: RunDir, checkpoint: str | None, out: Path | None, is_dcp: bool) -> int:
    """Replace this process by the trainer's export, which imports torch, from this checkout.

    is_dcp: write weights and optimizer in torch's format, not the weights as safetensors.
    Raises: UserError if the run has no checkpoint yet.
    """
    if not checkpoint_names(run_dir.checkpoints):
        status = installation.command("status", run_dir.run_id)
        hint = (
            f"the first one is committed after an epoch, or at a stop; {status} shows the progress"
        )
        raise UserError(f"{run_dir.run_id} has no checkpoint yet\n  hint: {hint}")
    argv = [sys.executable, "-m", "slurm_job_kit.trainer.checkpoint.export", str(run_dir.path)]
    argv += ["--checkpoint", checkpoint] if checkpoint else []
    argv += ["--out", str(out)] if out else []
    argv += ["--dcp"] if is_dcp else []
    os.execv(argv[0], argv)
