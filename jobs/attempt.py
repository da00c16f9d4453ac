"""One attempt of a run: opened before the agents start, closed after they have ended.

    python -m jobs.attempt open RUN_DIR [--head-address IP] NODE...   prints the attempt's number
    python -m jobs.attempt watch RUN_DIR ATTEMPT SRUN_PID     bounds the end of its srun step
    python -m jobs.attempt close RUN_DIR ATTEMPT

The batch script calls them on the first node; `jobs.local` and hand-launched runs call the same
functions. An attempt that nobody closed is closed as `lost` by the next `open`. Standard library
only: the batch host may have nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs import checkpoints, history, owner, purged, rendezvous, runs, slurm, step, successor
from jobs.act import act, in_words
from jobs.decision import Action, Decision, decide
from jobs.errors import FailedError, UserError
from jobs.evidence import gather
from jobs.job_log import report_error, report_quarantine
from jobs.rundir import (
    RunDir,
    Timeline,
    read_jsonl,
    write_atomic,
    write_json,
)
from jobs.spec import Spec
from jobs.stop_signals import hold_back
from jobs.talk import BestEffort, counted, say


def open_attempt(
    run_dir: RunDir, me: owner.Owner, nodes: Sequence[str], resolved: str = ""
) -> int | None:
    """Open the next attempt and write its plan; None if the run is complete already.

    Raises: OwnedError, RendezvousError, HeldError, EndedError.
    """
    successor.look_back(run_dir, me)
    attempt = history.newest_attempt(run_dir) + 1
    owner.claim(run_dir, me, attempt)
    try:
        return _open(run_dir, me, nodes, resolved)
    except (UserError, FailedError, OSError):
        with contextlib.suppress(OSError):
            owner.release(run_dir, me)
        raise


@contextlib.contextmanager
def told_in_one_line(run_dir: RunDir, me: owner.Owner) -> Iterator[None]:
    """A block in which a disk that fails ends this run's work here, not with a traceback.

    Raises: FailedError for any OSError, once the run is given up as far as the disk allows.
    """
    try:
        yield
    except OSError as error:
        with contextlib.suppress(OSError):
            owner.release(run_dir, me)
        raise FailedError(
            f"{error.filename or run_dir.path}: {error.strerror or error}; cannot record what "
            "happens to the run\n"
            "  hint: mend that, then make resume goes on from the last checkpoint"
        ) from error


def _open(run_dir: RunDir, me: owner.Owner, nodes: Sequence[str], resolved: str) -> int | None:
    # Counted again: until the claim another job may have opened attempts.
    attempt = history.newest_attempt(run_dir) + 1
    owner.claim(run_dir, me, attempt)
    for line in purged.mend(run_dir):
        say(line)
    history.close_lost(run_dir, me)
    if not me.is_local:
        runs.note_job(run_dir, me.job_id, slurm.cluster_name())
    if history.is_complete(run_dir):
        history.finish_result(run_dir)
        successor.cancel(run_dir, me.job_id)
        owner.release(run_dir, me)
        return None
    purged.check(run_dir)
    refuse(run_dir, me)
    run_dir.result.unlink(missing_ok=True)
    if me.is_local:
        address, how = "127.0.0.1", "a local run"
    else:
        address, how = rendezvous.head_address(resolved, nodes)
        spec = Spec.read(run_dir.spec)
        rendezvous.check_private(address, spec.launch.public_rendezvous)
    port = rendezvous.choose_port(me.job_id, attempt)
    plan = {
        "attempt": attempt,
        "job_id": me.job_id,
        "nodes": list(nodes),
        "head_address": address,
        "head_address_is": how,
        "rdzv_endpoint": f"{address}:{port}",
        "rdzv_id": f"{me.job_id}-{attempt}",
        "start": round(time.time(), 3),
        "deadline": None if me.is_local else slurm.end_time(me.job_id),
        "checkpoint": checkpoints.newest(run_dir),
        "quarantined": checkpoints.quarantined(run_dir),
    }
    attempt_dir = run_dir.attempt(attempt)
    attempt_dir.path.mkdir(exist_ok=True)
    argv = step_argv(run_dir, attempt, len(nodes), os.environ.get("SLURM_CPUS_PER_TASK"))
    write_atomic(attempt_dir.step_argv, "".join(f"{argument}\0" for argument in argv))
    write_json(attempt_dir.plan, plan)
    if not me.is_local:
        successor.ensure(run_dir, me.job_id, attempt)
    note(run_dir, attempt, "open", nodes=list(nodes), job_id=me.job_id)
    there = counted(len(nodes), "node")
    say(f"attempt {attempt}: {there}, rendezvous at {address}:{port} ({how})")
    return attempt


class HeldError(FailedError):
    """The run was held or cancelled, and nobody has resumed it."""


def refuse(run_dir: RunDir, me: owner.Owner) -> None:
    """Raises HeldError where this job was held or cancelled, and only Slurm starts it again."""
    reason = history.refusal(run_dir, me)
    if reason is not None:
        raise HeldError(
            f"{run_dir.path}: not started again: {reason}\n  hint: make resume goes on with it"
        )


def note(run_dir: RunDir, attempt: int, event: str, **fields: Any) -> None:
    """Put an event into the attempts' timeline; nothing is decided by it, so it may fail."""
    with BestEffort("attempt")():
        Timeline(run_dir, "attempt", attempt).event(event, **fields)


def step_argv(run_dir: RunDir, attempt: int, nodes: int, cpus: str | None) -> list[str]:
    """The command that starts one agent on each node. Source: srun(1)."""
    spec = Spec.read(run_dir.spec)
    return [
        "srun",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        # srun does not inherit it since Slurm 22.05.
        f"--cpus-per-task={cpus or spec.slurm.cpus_per_task}",
        "--kill-on-bad-exit=1",
        f"--chdir={run_dir.code}",
        *spec.slurm.srun,
        # Not around a wrap: it may be what has to take the signals and pass them on.
        *(spec.launch.wrap or step.shield()),
        *(sys.executable, "-m", "jobs.agent", str(run_dir.path), str(attempt)),
    ]


def close_attempt(
    run_dir: RunDir,
    me: owner.Owner,
    attempt: int,
    stops: Sequence[str] = (),
    srun_exit: int = 0,
) -> Decision:
    """Decide what follows an attempt that has ended, and record it before it is acted on.

    `stops`: signals that the caller has seen; an agent that was just starting dies of its own.
    `srun_exit`: the exit code of the step's srun, where there was one.
    Raises: OwnedError for an attempt that was superseded meanwhile, OSError.
    """
    if not run_dir.spec.is_file():
        raise FileNotFoundError(errno.ENOENT, "the run directory is gone", str(run_dir.path))
    owner.check_owned(run_dir, me, attempt)
    evidence = gather(run_dir, me, attempt, srun_exit)
    if not evidence.signals:
        evidence = replace(evidence, signals=tuple(stops))
    budget = history.budget_of(run_dir)
    decision = decide(evidence, history.of(read_jsonl(run_dir.attempts)), budget)
    with BestEffort("attempt")():
        report_quarantine(run_dir, attempt)
        report_error(run_dir, attempt, evidence)
    # Slurm may have been silent for minutes, and the job runs again elsewhere.
    owner.check_owned(run_dir, me, attempt)
    history.record(run_dir, attempt, evidence, decision)
    note(run_dir, attempt, "close", decision=decision.action)
    say(f"attempt {attempt}: {in_words(decision, run_dir)}")
    if decision.action is Action.DONE:
        history.finish_result(run_dir)
    elif decision.action in (Action.HOLD, Action.CANCEL):
        history.unfinished_result(run_dir, decision)
    if decision.action in (Action.DONE, Action.HOLD, Action.CANCEL):
        successor.cancel(run_dir, me.job_id)
        owner.release(run_dir, me)
    return decision


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
    closing.add_argument(
        "--srun-exit", type=int, default=0, help="the exit code of the step's srun"
    )
    closing.add_argument("--stop", default="", help="the stop signal that the batch shell got")
    closing.add_argument("--pid", type=int, help="hand launch: the process that owns the run")
    args = parser.parse_args(argv)
    run_dir = RunDir(args.run_dir)
    job_id = slurm.job_id_from(os.environ)
    if args.command == "watch":
        step.watch(run_dir, job_id or "", args.attempt, args.srun_pid)
        return 0
    if args.pid is None and job_id is None:
        parser.error("no SLURM_JOB_ID: this is for slurm/ddp.sbatch")
    me = owner.this_process(job_id) if args.pid is None else owner.process(args.pid)
    try:
        with told_in_one_line(run_dir, me):
            if args.command == "close":
                seen = step.stops_at_start(run_dir, args.attempt, args.srun_exit)
                stops = [args.stop] if args.stop else seen
                closed = close_attempt(run_dir, me, args.attempt, stops, args.srun_exit)
                return act(closed, run_dir, me)
            attempt = open_attempt(run_dir, me, args.nodes, args.head_address)
    except (UserError, FailedError) as error:
        say(f"error: {error}")
        return 1
    if attempt is not None:
        print(attempt)
    else:
        say(f"{run_dir.path}: already complete, nothing to do")
    return 0


if __name__ == "__main__":
    # Some sites signal the whole tree of the batch shell, also because of our own requeue.
    hold_back()
    sys.exit(main())
