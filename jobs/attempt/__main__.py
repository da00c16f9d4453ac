"""One attempt of a run: opened before the agents start, closed after they have ended.

    python -m jobs.attempt open RUN_DIR [--head-address IP] NODE...   prints its number and endpoint
    python -m jobs.attempt watch RUN_DIR ATTEMPT SRUN_PID     bounds the end of its srun step
    python -m jobs.attempt close RUN_DIR ATTEMPT

The batch script calls them on the first node; `jobs.commands.local` and hand-launched runs call
the same functions. The next `open` records an attempt whose batch script was killed. Standard
library only: the batch host may have nothing else.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from slurm_job_kit.jobs.attempt import srun_step
from slurm_job_kit.jobs.attempt.close import close
from slurm_job_kit.jobs.attempt.execute import end_for_good, execute
from slurm_job_kit.jobs.attempt.open import open_attempt
from slurm_job_kit.jobs.console import begin_lines_with_time, say
from slurm_job_kit.jobs.errors import FailedError, UserError
from slurm_job_kit.jobs.node.stop_signals import block_stop_signals
from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.runs import code_snapshot, run_lock
from slurm_job_kit.jobs.slurm import client


def main(argv: list[str] | None = None) -> int:
    """The batch script's three commands."""
    parser = argparse.ArgumentParser(prog="python -m jobs.attempt", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    opening = commands.add_parser("open")
    opening.add_argument("run_dir", type=Path)
    opening.add_argument("--head-address", default="")
    opening.add_argument("--pid", type=int, help="hand launch: the process that owns the run")
    opening.add_argument("nodes", nargs="+")
    watching = commands.add_parser("watch")
    closing = commands.add_parser("close")
    for command in (watching, closing):
        command.add_argument("run_dir", type=Path)
        command.add_argument("attempt", type=int)
    watching.add_argument("srun_pid", type=int)
    watching.add_argument("--stop", default="", help="a stop signal that came before")
    closing.add_argument(
        "--srun-exit", type=int, default=0, help="the exit code of the step's srun"
    )
    closing.add_argument("--stop", default="", help="the stop signal that the batch shell got")
    closing.add_argument("--pid", type=int, help="hand launch: the process that owns the run")
    args = parser.parse_args(argv)
    run_dir = RunDir(args.run_dir)
    job_id = client.job_id_from(os.environ)
    if args.command == "watch":
        srun_step.watch(run_dir, job_id or "", args.attempt, args.srun_pid, args.stop)
        return 0
    if args.pid is None and job_id is None:
        parser.error("no SLURM_JOB_ID: this is for slurm/ddp.sbatch")
    me = run_lock.this_process(job_id) if args.pid is None else run_lock.process(args.pid)
    try:
        with run_lock.release_on_disk_error(run_dir, me):
            if args.command == "close":
                stops = [args.stop] if args.stop else []
                decision, found = close(run_dir, me, args.attempt, stops, args.srun_exit)
                return execute(decision, run_dir, found, me)
            # The ranks of a launch by hand run the same code as this process.
            checkout = None if args.pid is None else code_snapshot.repository()
            plan = open_attempt(run_dir, me, args.nodes, args.head_address, checkout)
    except (UserError, FailedError) as error:
        say(f"error: {error}")
        is_refused = args.command == "open" and args.pid is None
        if is_refused and job_id is not None and not run_lock.is_restarted(run_dir, me):
            return end_for_good(job_id)
        return 1
    if plan is not None:
        print(plan.attempt, plan.rdzv_endpoint)
    else:
        say(f"{run_dir.path}: already complete, nothing to do")
    return 0


if __name__ == "__main__":
    # Some sites signal the whole tree of the batch shell, also because of our own requeue.
    block_stop_signals()
    begin_lines_with_time()
    sys.exit(main())
