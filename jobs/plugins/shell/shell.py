"""The command shell: prints the srun line of a shell on the node of a running rank, or runs it."""

import argparse
import os
import shlex

from ... import hooks
from ...base import answer, installation
from ...base.environment import Program
from ...base.errors import UserError
from ...commands.arguments import RUN
from ...runs import lookup, state
from ...slurm.job import plain_job_id, step_argv

MAKE = ("RUN", "FLAGS")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument("--rank", type=int, default=0, help="global rank, 0 by default")
    parser.add_argument("--go", action="store_true", help="run the line instead of printing it")


def command(args: argparse.Namespace) -> int:
    """Run shell; returns the exit code. Raises: UserError for a run without a running job."""
    run = state.read(lookup.find(args.run))
    run.refuse_unknown()
    plan, job_id = run.files.plan, run.job_id
    if run.word != "running" or plan is None or job_id is None:
        status = installation.command("status", run.run_dir.run_id)
        raise UserError(f"{run.run_dir.run_id} has no running Slurm job\n  hint: {status}")
    nproc = run.files.spec.nproc_per_node
    if not 0 <= args.rank < len(plan.nodes) * nproc:
        raise UserError(f"--rank {args.rank}: the ranks are 0 to {len(plan.nodes) * nproc - 1}")
    node = plan.nodes[args.rank // nproc]
    argv = step_argv(plain_job_id(job_id), node, ["bash"], has_terminal=True)
    if not answer.give(srun=argv):
        print(shlex.join(argv), flush=True)
    if args.go:
        os.execvpe(argv[0], *hooks.launch_command(Program.SBATCH, argv, os.environ))
    return 0
