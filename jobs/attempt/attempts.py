"""Runs attempts, one after another, until a decision ends this start of a job, or a local run.

An attempt of a job is an srun step; `jobs.commands.local` starts the agents of a local run itself.
slurm/ddp.sbatch becomes this process by exec, so it gets the stop signals of the batch script. If
it is killed, the kernel kills its srun, and the job ends: its next start records that attempt.
"""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .. import hooks
from ..base.console import BestEffort, print_line
from ..base.environment import Program
from ..base.errors import FailedError, UserError
from ..base.files import write_atomic
from ..base.prctl import begin_child
from ..base.stop_signals import StopSignals
from ..contract.records.nodes import AttemptPlan, Chosen
from ..contract.rundir import RunDir
from ..contract.spec import Spec
from ..runs import run_lock
from . import srun_step
from .close import close, close_lost
from .execute import EXIT_RETRY, end_for_good, execute, retry_delay_s
from .open import Opened, claimed, open_attempt

# srun waits until Slurm has ended the step before it. After a node was cut off Slurm 22.05 may
# count that step for ever: "Requested nodes are busy" (seen twice). Source: srun(1), --immediate.
STEP_LIMIT_S = 120


@dataclass(frozen=True)
class Allocation:
    """Where the attempts run, and how.

    run_step: runs the agents of an attempt to their end; returns the exit code of their srun, as a
    shell counts it. head_address: of the first node; empty where its name has none.
    """

    nodes: Sequence[str]
    run_step: Callable[[AttemptPlan, Chosen], int]
    head_address: str = ""


def run(run_dir: RunDir, me: run_lock.Owner, where: Allocation, stops: StopSignals) -> int:
    """Run attempts until a decision ends this start, and execute it; returns the exit code.

    Raises: UserError, FailedError for a local run that cannot begin an attempt, or record it.
    """
    code, limit = EXIT_RETRY, list[str]()
    while code == EXIT_RETRY:
        opened, code = open_next(run_dir, me, where.nodes, where.head_address)
        if opened is None:
            break
        chosen = replace(opened.chosen, srun_args=[*opened.chosen.srun_args, *limit])
        step_exit = where.run_step(opened.plan, chosen)
        limit = [f"--immediate={STEP_LIMIT_S}"]
        code = close_and_execute(run_dir, me, opened.plan.attempt, stops, step_exit)
    return code


def open_next(
    run_dir: RunDir,
    me: run_lock.Owner,
    nodes: Sequence[str],
    head_address: str,
    checkout: Path | None = None,
) -> tuple[Opened | None, int]:
    """Record the last attempt if its batch script was killed, then open the next one.

    Returns: as `open_attempt`, and the exit code where that is None.
    """
    with _named_failure(run_dir, me), claimed(run_dir, me) as facts:
        facts = close_lost(run_dir, facts, me)
        opened = open_attempt(run_dir, me, facts, nodes, head_address, checkout)
        if opened is None:
            print_line(f"{run_dir.path}: already complete, nothing to do")
        return opened, 0
    # After an error, which `_named_failure` has printed.
    with contextlib.suppress(OSError, UserError):
        owner = run_lock.read(run_dir)
        if owner is not None and me.is_restarted_as(owner):
            return None, 1
    return None, end_for_good(me.job_id)


def close_and_execute(
    run_dir: RunDir, me: run_lock.Owner, attempt: int, stops: StopSignals, srun_exit: int = 0
) -> int:
    """Close an attempt as `close` does, and execute the decision; return the exit code."""
    with _named_failure(run_dir, me):
        # A signal that comes from now on is one for the next attempt.
        decision, facts = close(run_dir, me, attempt, stops.take(), srun_exit)
        code = execute(decision, run_dir, facts, me)
        if code == EXIT_RETRY:
            stops.pause(retry_delay_s(facts.attempts))
        return code
    return 1  # after an error, which `_named_failure` has printed


@contextlib.contextmanager
def _named_failure(run_dir: RunDir, me: run_lock.Owner) -> Iterator[None]:
    """Run a block that opens or ends an attempt; an error of it is a line of the job's log.

    Raises: UserError, FailedError without a job: the command prints them.
    """
    try:
        with run_lock.release_on_disk_error(run_dir, me):
            yield
    except (UserError, FailedError) as error:
        if me.is_local:
            raise
        print_line(f"error: {error}")


def run_srun(
    run_dir: RunDir, srun_line: Sequence[str], stops: StopSignals, plan: AttemptPlan, chosen: Chosen
) -> int:
    """Run the srun step of an attempt to its end; returns srun's exit code as a shell counts it.

    srun_line: its command line, without what spec and nodes add.
    """
    try:
        spec = Spec.read(run_dir.spec)
        agent = srun_step.agent_command(run_dir, spec, plan.attempt)
        # srun does not inherit it since Slurm 22.05. A step without it has all cores of its job.
        cpus = os.environ.get("SLURM_CPUS_PER_TASK")
        options = [*([f"--cpus-per-task={cpus}"] if cpus else []), *spec.slurm.srun_args]
        argv = [*srun_line, *options, *chosen.srun_args, *agent]
        argv, env = hooks.launch_command(Program.SRUN, argv, os.environ, spec)
        srun = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, preexec_fn=begin_child)
    except (OSError, subprocess.SubprocessError, UserError, FailedError) as error:
        words = f"srun was not started: {error}"
        print_line(f"attempt {plan.attempt}: error: {words}")
        with BestEffort("attempt")():  # as an agent that does not start torchrun
            text = f"{plan.nodes[0]}: {words}\n"
            write_atomic(run_dir.attempt(plan.attempt).agent_error(0), text)
        return 127  # as a shell that does not find a command
    with hooks.beside(run_dir, plan):
        try:
            srun_step.watch(run_dir, plan, srun, stops, chosen.lost)
        except Exception as error:  # a mistake of the watch ends no attempt
            print_line(f"attempt {plan.attempt}: warning: srun is not watched any more: {error!r}")
        code = srun.wait()
    return code if code >= 0 else 128 - code
