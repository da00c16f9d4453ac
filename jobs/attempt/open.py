"""Opens an attempt: claims the run, chooses the rendezvous, writes plan and srun command."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence

from jobs import records
from jobs.attempt import history, run_lock, srun_step, successor
from jobs.console import counted, say
from jobs.errors import FailedError, UserError
from jobs.node import rendezvous
from jobs.records import AttemptPlan
from jobs.rundir import RunDir, write_atomic
from jobs.runs import checkpoints, lookup, purge
from jobs.slurm import client
from jobs.spec import Spec


def open_attempt(
    run_dir: RunDir, me: run_lock.Owner, nodes: Sequence[str], resolved: str = ""
) -> AttemptPlan | None:
    """Open the next attempt: write its plan and return it; None if the run is already complete.

    Raises: OwnedError, RendezvousError, HeldError, EndedError.
    """
    successor.look_back(run_dir, me)
    attempt = history.newest_attempt(run_dir) + 1
    run_lock.claim(run_dir, me, attempt)
    try:
        return _open(run_dir, me, nodes, resolved)
    except (UserError, FailedError, OSError):
        with contextlib.suppress(OSError):
            run_lock.release(run_dir, me)
        raise


def _open(
    run_dir: RunDir, me: run_lock.Owner, nodes: Sequence[str], resolved: str
) -> AttemptPlan | None:
    # Counted again: until the claim another job may have opened attempts.
    attempt = history.newest_attempt(run_dir) + 1
    run_lock.claim(run_dir, me, attempt)
    for line in purge.mend(run_dir):
        say(line)
    history.close_lost(run_dir, me)
    if not me.is_local:
        lookup.note_job(run_dir, me.job_id, client.cluster_name())
    if history.is_complete(run_dir):
        history.finish_result(run_dir)
        successor.cancel(run_dir, me.job_id)
        run_lock.release(run_dir, me)
        return None
    purge.check(run_dir)
    refuse(run_dir, me)
    run_dir.result.unlink(missing_ok=True)
    spec = Spec.read(run_dir.spec)
    if me.is_local:
        address, how = "127.0.0.1", "a local run"
    else:
        address, how = rendezvous.head_address(resolved, nodes)
        rendezvous.check_private(address, spec.launch.allow_public_rendezvous)
    port = rendezvous.choose_port(me.job_id, attempt)
    plan = AttemptPlan(
        attempt=attempt,
        job_id=me.job_id,
        nodes=tuple(nodes),
        head_address=address,
        head_address_is=how,
        rdzv_endpoint=f"{address}:{port}",
        rdzv_id=f"{me.job_id}-{attempt}",
        start=round(time.time(), 3),
        deadline=None if me.is_local else client.end_time(me.job_id),
        checkpoint=checkpoints.newest(run_dir),
        quarantined=tuple(checkpoints.quarantined(run_dir)),
    )
    attempt_dir = run_dir.attempt(attempt)
    attempt_dir.path.mkdir(exist_ok=True)
    argv = srun_step.argv_from_spec(spec, os.environ.get("SLURM_CPUS_PER_TASK"))
    write_atomic(attempt_dir.srun_argv, "".join(f"{argument}\0" for argument in argv))
    records.write(attempt_dir.plan, plan)
    if not me.is_local:
        successor.ensure(run_dir, me.job_id, attempt)
    history.note(run_dir, attempt, "open", nodes=list(nodes), job_id=me.job_id)
    there = counted(len(nodes), "node")
    say(f"attempt {attempt}: {there}, rendezvous at {address}:{port} ({how})")
    return plan


class HeldError(FailedError):
    """The run was held or cancelled, and nobody has resumed it."""


def refuse(run_dir: RunDir, me: run_lock.Owner) -> None:
    """Raises HeldError where this job was held or cancelled, and only Slurm starts it again."""
    reason = history.refusal(run_dir, me)
    if reason is not None:
        raise HeldError(
            f"{run_dir.path}: not started again: {reason}\n  hint: make resume goes on with it"
        )
