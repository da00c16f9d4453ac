"""Opens an attempt: claims the run, chooses the rendezvous, writes the plan."""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from .. import hooks
from ..base import files, gpus, installation
from ..base.console import print_line, quantity
from ..base.errors import FailedError, UserError
from ..contract import records
from ..contract.records.nodes import AttemptPlan, Chosen, Head
from ..contract.rundir import RunDir
from ..contract.spec import Launch, Slurm
from ..node import interfaces, rendezvous
from ..node.signed_torchrun import KEY_BYTES
from ..runs import code_snapshot, fact_reader, lookup, ownership, revision, run_lock, scratch_purge
from ..runs.facts import AttemptFacts
from ..slurm import cluster
from ..slurm.job import end_time, restart_count
from . import record_writer
from .decision import COMPLETED, refusal
from .execute import end_run


@contextlib.contextmanager
def claimed(run_dir: RunDir, me: run_lock.Owner) -> Iterator[AttemptFacts]:
    """Run a block that opens the next attempt of a run, which is claimed for it.

    Yields: the facts of the newest attempt. If the block fails, the claim is released.
    Raises: OwnedError, RecordError, OSError; UserError for files that another user may change.
    """
    ownership.check(run_dir)
    number = fact_reader.newest_opened(run_dir) + 1
    run_lock.claim(run_dir, me, number)
    try:
        facts = _facts_after_claim(run_dir, number)
        attempt = facts.newest + 1
        if attempt != number:
            run_lock.claim(run_dir, me, attempt)
        yield facts
    except (UserError, FailedError, OSError):
        with contextlib.suppress(OSError):
            run_lock.release(run_dir, me)
        raise


def _facts_after_claim(run_dir: RunDir, claimed: int) -> AttemptFacts:
    """Return the facts of the newest attempt, for an attempt with the number `claimed`, or later.

    Until the claim another job may have opened attempts, or a resume have changed the run.
    """
    with files.one_look():
        names = files.listdir(run_dir.path)
        if run_dir.revision.name not in names:
            is_opened = run_dir.attempt(claimed).path.name in names
            newest = fact_reader.newest_opened(run_dir) if is_opened else claimed - 1
            return fact_reader.read(run_dir, newest, is_for_next=True)
    revision.complete(run_dir)
    return _facts_after_claim(run_dir, claimed)


class Opened(NamedTuple):
    """An attempt that may start on its nodes."""

    plan: AttemptPlan
    chosen: Chosen


def open_attempt(
    run_dir: RunDir,
    me: run_lock.Owner,
    facts: AttemptFacts,
    nodes: Sequence[str],
    resolved: str = "",
    checkout: Path | None = None,
) -> Opened | None:
    """Open the next attempt: write its plan and return it; None if the run is already complete.

    facts: of the attempt before, which has its record. `resolved`: the first node's address, if the
    batch script found one. `checkout`: the code that the ranks of a launch by hand run; all others
    run the frozen code.
    Raises: UserError, FailedError.
    """
    attempt = facts.newest + 1
    if not (me.is_local or facts.is_completed or facts.spec_error):
        check_allocation(run_dir, facts.spec.slurm, len(nodes), os.environ)
    for folder in (run_dir.checkpoints, run_dir.timeline("").parent, run_dir.rank_log(0).parent):
        folder.mkdir(exist_ok=True)  # a scratch purge may have deleted it
    if not me.is_local:
        _note_job(run_dir, facts, me)
    if facts.is_completed:
        end_run(run_dir, facts, me, COMPLETED)
        return None
    if facts.spec_error is not None:
        raise facts.spec_error
    code, kit = scratch_purge.check_code(run_dir)
    refuse(run_dir, facts, me)
    chosen = hooks.choose_nodes(run_dir, facts, me, nodes) or Chosen(tuple(nodes))
    if facts.result is not None:
        run_dir.result.unlink(missing_ok=True)
    if checkout is not None and checkout != run_dir.code.resolve():
        # It may have changed since the run was frozen: freeze it again, for the record.
        mode = int(facts.spec.dir_mode, 8)
        code = code_snapshot.take(checkout, run_dir.path.parent.parent, mode=mode)
    plan = replace(
        plan_of(facts, me, attempt, chosen, resolved),
        code=code_snapshot.digest_in(code.name),
        code_digest=" ".join(code_snapshot.digest_in(each.name) for each in (code, kit)),
    )
    _write_plan(run_dir, plan)
    if not me.is_local:
        hooks.successor(run_dir, facts, me, is_over=False)
    where = f", rendezvous at {plan.head.endpoint} ({plan.head.how}){chosen.note}"
    where = " on this machine" if me.is_local else where
    print_line(f"attempt {attempt}: {quantity(len(plan.nodes), 'node')}{where}")
    return Opened(plan, chosen)


def _write_plan(run_dir: RunDir, plan: AttemptPlan) -> None:
    attempt_dir = run_dir.attempt(plan.attempt)
    attempt_dir.path.mkdir(exist_ok=True)
    write_key(attempt_dir.rendezvous_key)  # an agent that sees the plan reads it
    records.write(attempt_dir.plan, plan)
    nodes, job_id = list(plan.nodes), plan.job_id
    record_writer.note(run_dir, plan.attempt, "open", nodes=nodes, job_id=job_id)


def _note_job(run_dir: RunDir, facts: AttemptFacts, me: run_lock.Owner) -> None:
    """Record what the run directory does not have yet of this job and its Slurm."""
    if facts.site is None:  # Slurm did not answer submit, or there was none
        cluster.record_settings(run_dir)
    if facts.submission.job_id != me.job_id:  # its submitter did not
        of_job = replace(facts.submission, job_id=me.job_id, uid=me.uid, cluster=me.cluster)
        records.write(run_dir.submission, of_job)
        lookup.remember(run_dir, me.job_id, cluster.cluster_name())
    link_job_log(run_dir)


def write_key(path: Path) -> None:
    """Write a new key of the rendezvous, which this user alone can read."""
    path.unlink(missing_ok=True)  # of a process that was killed before it wrote the plan
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb") as file:
        file.write(os.urandom(KEY_BYTES))


def link_job_log(run_dir: RunDir) -> None:
    """Let job.log lead to this job's log where plain sbatch has put it elsewhere.

    The kit's own jobs write to job.log itself. This process has the batch script's stderr.
    """
    with contextlib.suppress(OSError):
        log = os.readlink("/proc/self/fd/2")
        if log == str(run_dir.job_log) or not os.path.isfile(log):
            return
        if run_dir.job_log.is_symlink() or not os.path.lexists(run_dir.job_log):
            files.relink(run_dir.job_log, log)


def check_allocation(
    run_dir: RunDir, wanted: Slurm, nodes: int, environ: Mapping[str, str]
) -> None:
    """Raises UserError where a job has other nodes than its run, or fewer GPUs.

    Results depend on the number of ranks. A job that Slurm has started again has what it had at its
    first start, or, after --nodes=MIN-MAX, what there is.
    """
    has, key = None, ""
    fits = wanted.fewest_job_nodes <= nodes <= wanted.job_nodes
    if not fits and restart_count(environ) == 0:
        has, key = quantity(nodes, "node"), f"slurm.nodes={wanted.nodes}"
        key += f" and slurm.spare_nodes={wanted.spare_nodes}" if wanted.spare_nodes else ""
        change = f"slurm.nodes={nodes - wanted.spare_nodes}"
    elif has := gpus.too_few(environ, nodes, wanted.num_gpus):
        key = f"slurm.gpus_per_node={wanted.gpus_per_node}"
        change = "slurm.gpus_per_node=..."
    if has is not None:
        resume = installation.command("resume", str(run_dir.path))
        changed = installation.command("resume", str(run_dir.path), change)
        what = f"{run_dir.path}: this job has {has}; the run was submitted with {key}"
        raise UserError(what, f"{resume} asks for what the run needs; {changed} changes it")


def plan_of(
    facts: AttemptFacts, me: run_lock.Owner, attempt: int, chosen: Chosen, resolved: str
) -> AttemptPlan:
    """Return the plan of the next attempt. facts: of the attempt before.

    Raises: UserError.
    """
    launch = facts.spec.launch
    if me.is_local:
        port = rendezvous.choose_port(me.job_id, attempt)
        head = Head("127.0.0.1", "a local run", port)
    else:
        head = chosen.head or head_here(launch, me.job_id, attempt, chosen.nodes, resolved)
        rendezvous.check_private(head.address, launch.allow_public_rendezvous)
    return AttemptPlan(
        attempt=attempt,
        job_id=me.job_id,
        nodes=chosen.nodes,
        head=head,
        start=round(time.time(), 3),
        deadline=None if me.is_local else end_time(me.job_id),
        checkpoint=facts.saved.checkpoint,
        quarantined=facts.saved.quarantined,
    )


def head_here(
    launch: Launch, job_id: str, attempt: int, nodes: Sequence[str], resolved: str
) -> Head:
    """Return where the agents meet; called on the first of the nodes.

    resolved: its address, if its name gives one. Raises: UserError.
    """
    known = cluster.node_addresses
    address, how = rendezvous.head_address(resolved, nodes, launch.interface, known)
    port = rendezvous.choose_port(job_id, attempt)
    return Head(address, how, port, interfaces.list_interfaces())


def refuse(run_dir: RunDir, facts: AttemptFacts, me: run_lock.Owner) -> None:
    """Raises FailedError for a run that was cancelled, or held while only Slurm starts this job."""
    # Also a job that was queued before the cancel, and that the cancel did not find.
    last = refusal(facts.last, me.job_id, lookup.predecessor(run_dir))
    reason = "the run was cancelled" if facts.mark is not None else last
    if reason is not None:
        what = f"{run_dir.path}: not started again: {reason}"
        raise FailedError(what, f"{installation.command('resume')} continues it")
