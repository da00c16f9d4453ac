"""One attempt of a run: opened before the agents start, closed after they have ended.

    python -m jobs.attempt run RUN_DIR NODE... --srun SRUN...    all attempts of a start of a job
    python -m jobs.attempt open RUN_DIR PID                      prints the number of the attempt
    python -m jobs.attempt close RUN_DIR PID ATTEMPT

The batch script becomes `run` on the first node; `jobs.commands.local` calls the same function.
Rank 0 of a launch by hand, PID, calls `open` and `close`. The next start records an attempt whose
batch script was killed. Standard library only: the batch host may have nothing else.
"""

import argparse
import os
import socket
import sys
from functools import partial
from pathlib import Path

from ..base.console import begin_lines_with_time, escape_output, print_line
from ..base.errors import FailedError, UserError
from ..base.stop_signals import StopSignals, block_stop_signals
from ..contract.rundir import RunDir
from ..runs import code_snapshot, run_lock
from ..slurm.job import job_id_from
from . import attempts


def main(argv: list[str] | None = None) -> int:
    """Execute one of the commands; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m jobs.attempt", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    running, opening, closing = map(commands.add_parser, ("run", "open", "close"))
    for command in (running, opening, closing):
        command.add_argument("run_dir", type=Path)
    for command in (opening, closing):
        command.add_argument("pid", type=int)
    closing.add_argument("attempt", type=int)
    running.add_argument("nodes", nargs="+")
    running.add_argument("--head-address", default="")
    running.add_argument("--srun", nargs=argparse.REMAINDER, help="srun's command line")
    args = parser.parse_args(argv)
    run_dir = RunDir(args.run_dir)
    if args.command == "run":
        return _run(run_dir, args)
    me = run_lock.process(args.pid)
    try:
        if args.command == "close":
            return attempts.close_and_execute(run_dir, me, args.attempt, StopSignals())
        # The ranks run the same code as this process.
        checkout = code_snapshot.repository()
        opened, code = attempts.open_next(run_dir, me, [socket.gethostname()], "", checkout)
    except (UserError, FailedError) as error:
        print_line(f"error: {error}")
        return 1
    if opened is not None:
        print(opened.plan.attempt)
    return code


def _run(run_dir: RunDir, args: argparse.Namespace) -> int:
    job_id = job_id_from(os.environ)
    if job_id is None:
        sys.exit("error: no SLURM_JOB_ID: this is for slurm/ddp.sbatch")
    me, stops = run_lock.this_process(job_id), StopSignals()
    run_step = partial(attempts.run_srun, run_dir, args.srun, stops)
    job = attempts.Allocation(args.nodes, run_step, args.head_address)
    return attempts.run(run_dir, me, job, stops)


if __name__ == "__main__":
    # `run` reads them. Slurm also sends some because of our own requeue: they end no decision.
    block_stop_signals()
    begin_lines_with_time()
    escape_output()
    sys.exit(main())
