"""Runs the attempts of one start of a job: an srun step each, until a decision ends this start.

slurm/ddp.sbatch is the parent of this process. That shell gets the stop signals and passes them on
through a pipe; this process ignores them, as some sites signal the whole tree. If this process is
killed, the kernel kills its sruns, and the shell starts it again: it then closes that attempt.

The agents of the next attempt wait in an srun step of their own, with torch imported: jobs.node,
standby. Their stdin is a pipe of this process. A retry writes the attempt's number and endpoint to
it; when this process ends, they end, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from .. import environment
from ..console import print_line
from ..environment import Door
from ..errors import FailedError, UserError
from ..node.prctl import die_with_parent
from ..node.standby import WORD
from ..node.stop_signals import STOP_SIGNALS, unblock_stop_signals
from ..records.ended import FINAL
from ..records.nodes import AttemptPlan
from ..rundir import RunDir
from ..runs import fact_reader, interpret, run_lock
from ..slurm import client
from ..spec import Spec
from . import srun_step
from .close import close
from .decision import decision_of
from .execute import EXIT_RETRY, end_for_good, end_run, execute
from .open import open_attempt

STANDBY_END_S = 3
EXIT_NOT_STARTED, EXIT_KILLED = 127, 128 + signal.SIGKILL


@dataclass(frozen=True)
class Allocation:
    """What the batch script knows of its job.

    head_address: of the first node; empty where its name has none. srun: the command line of each
    attempt, without what the spec adds.
    """

    nodes: Sequence[str]
    head_address: str
    srun: Sequence[str]


class Sruns:
    """Starts the srun step of each attempt, and that of the agents which wait for the next one."""

    def __init__(self, run_dir: RunDir, srun: Sequence[str]) -> None:
        self._run_dir, self._command = run_dir, srun
        self._standby: subprocess.Popen[bytes] | None = None
        self._can_overlap = client.can_overlap()
        self._options: Sequence[str] = ()  # what the spec adds
        self._waiting: Sequence[str] = ()  # the nodes of the agents that wait

    def start(self, spec: Spec, plan: AttemptPlan) -> subprocess.Popen[bytes]:
        """Start the agents of an attempt, by those that wait if there are any."""
        words = (str(plan.attempt), plan.rdzv_endpoint)
        self._options = srun_step.srun_argv(spec, os.environ)
        answering = {*plan.nodes, *plan.spares, *plan.left_out}
        if self._waiting and not {*plan.nodes} <= {*self._waiting} <= answering:
            self.end_standby()  # a node of it is lost: that srun would not end
        named: list[str] = []
        options = [*self._options]
        if spec.slurm.chooses_nodes:
            named, options = [",".join(plan.nodes)], options + srun_step.place_argv(plan.nodes)
        return self._wake((*words, *named)) or self._start(spec, options, words, subprocess.DEVNULL)

    def start_standby(self, spec: Spec, plan: AttemptPlan) -> None:
        """Start the agents that wait for the next attempt, as far as the spec asks for them.

        They also wait on the spare nodes, or only there.
        """
        spares = () if spec.spare_standby_s is None else plan.spares
        self._waiting = sorted({*(() if spec.standby_s is None else plan.nodes), *spares})
        if not self._waiting or not self._can_overlap:
            return
        # The step shares the memory of the attempt: where memory is a resource, the attempt's step
        # has all of it. srun takes one of these options and no second one.
        shared = [each for each in self._options if not each.startswith(("--mem=", "--mem-per-"))]
        shared += srun_step.place_argv(self._waiting) if spec.slurm.chooses_nodes else ["--overlap"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            words = (WORD, ",".join(plan.spares) or "-")
            self._standby = self._start(spec, [*shared, "--mem=0"], words, subprocess.PIPE)

    def _wake(self, words: Sequence[str]) -> subprocess.Popen[bytes] | None:
        """Let the agents that wait become those of an attempt; None if there are none."""
        srun = self._standby
        if srun is None or srun.poll() is not None:
            self.end_standby()
            return None
        try:
            with cast(IO[bytes], srun.stdin) as pipe:
                pipe.write(" ".join(words).encode() + b"\n")
        except BrokenPipeError:
            self.end_standby()
            return None
        self._standby = None
        return srun

    def end_standby(self) -> None:
        """End the agents that wait; one on a lost node does not answer."""
        standby, self._standby = self._standby, None
        if standby is None:
            return
        with contextlib.suppress(BrokenPipeError):
            cast(IO[bytes], standby.stdin).close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            standby.wait(STANDBY_END_S)
            return
        standby.kill()

    def _start(
        self, spec: Spec, options: Sequence[str], words: Sequence[str], stdin: int
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._command, *options, *srun_step.agent_command(self._run_dir, spec, *words)],
            stdin=stdin,
            preexec_fn=_become_srun,
        )


def _become_srun() -> None:
    """Undo in a new process what would make srun ignore a stop signal, before exec."""
    die_with_parent()
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    unblock_stop_signals()


def run(run_dir: RunDir, me: run_lock.Owner, job: Allocation, stops: srun_step.StopsOfShell) -> int:
    """Run attempts until a decision ends this start of the job; returns the exit code."""
    for name in os.environ.keys() - environment.variables_for(os.environ, Door.BATCH).keys():
        del os.environ[name]
    sruns = Sruns(run_dir, job.srun)
    code = _finish_killed(run_dir, me, stops)
    while code == EXIT_RETRY:
        stops.wait(0)
        if stops.is_shell_gone:  # Slurm ends the job, and its next start records the attempt
            return 1
        plan, code = open_next(run_dir, me, job.nodes, job.head_address)
        if plan is None:
            break
        srun_exit = _run_step(run_dir, me, plan, sruns, stops)
        # A signal that comes from now on is one for the next attempt.
        stop = stops.take()
        if stops.is_shell_gone:
            return 1
        code = close_and_execute(run_dir, me, plan.attempt, stop, srun_exit)
    sruns.end_standby()
    return code


def _run_step(
    run_dir: RunDir,
    me: run_lock.Owner,
    plan: AttemptPlan,
    sruns: Sruns,
    stops: srun_step.StopsOfShell,
) -> int:
    """Run the srun step of an attempt to its end; returns srun's exit code as a shell counts it."""
    try:
        spec = Spec.read(run_dir.spec)
        srun = sruns.start(spec, plan)
    except (OSError, subprocess.SubprocessError, UserError, FailedError) as error:
        print_line(f"attempt {plan.attempt}: error: srun was not started: {error}")
        return EXIT_NOT_STARTED
    sruns.start_standby(spec, plan)
    try:
        srun_step.watch(run_dir, me.job_id, plan.attempt, srun, stops)
    except Exception as error:  # a mistake of the watch ends no attempt
        print_line(f"attempt {plan.attempt}: warning: srun is not watched any more: {error!r}")
    code = srun.wait()
    return code if code >= 0 else 128 - code


def _finish_killed(run_dir: RunDir, me: run_lock.Owner, stops: srun_step.StopsOfShell) -> int:
    """Do what a killed process of this start of the job has left; return the exit code so far.

    It has not closed its attempt, or has recorded a decision and not executed it.
    """
    facts = None
    with contextlib.suppress(OSError, FailedError, UserError):  # `open_next` names the error
        if run_lock.is_owned_by_start(run_dir, me):
            facts = fact_reader.read_newest(run_dir)
            if not run_lock.is_owned_by_attempt(run_dir, me, facts.attempt):
                facts = None
    if facts is None:
        return EXIT_RETRY
    if interpret.is_unrecorded(facts):
        return close_and_execute(run_dir, me, facts.attempt, stops.take(), EXIT_KILLED)
    with _name_failure(run_dir, me):
        decision = decision_of(facts.attempts[-1])
        if decision.action in FINAL:
            facts = end_run(run_dir, facts, me, decision)
        return execute(decision, run_dir, facts, me)
    return 1


def open_next(
    run_dir: RunDir,
    me: run_lock.Owner,
    nodes: Sequence[str],
    head_address: str,
    checkout: Path | None = None,
) -> tuple[AttemptPlan | None, int]:
    """Open the next attempt as `open_attempt` does; returns its plan, or None and the exit code."""
    try:
        with run_lock.release_on_disk_error(run_dir, me):
            plan = open_attempt(run_dir, me, nodes, head_address, checkout)
    except (UserError, FailedError) as error:
        print_line(f"error: {error}")
        is_over = not me.is_local and not run_lock.is_restarted(run_dir, me)
        return None, end_for_good(me.job_id) if is_over else 1
    if plan is None:
        print_line(f"{run_dir.path}: already complete, nothing to do")
    return plan, 0


def close_and_execute(
    run_dir: RunDir, me: run_lock.Owner, attempt: int, stops: Sequence[str], srun_exit: int
) -> int:
    """Close an attempt as `close` does, and execute the decision; return the exit code."""
    with _name_failure(run_dir, me):
        decision, facts = close(run_dir, me, attempt, stops, srun_exit)
        return execute(decision, run_dir, facts, me)
    return 1


@contextlib.contextmanager
def _name_failure(run_dir: RunDir, me: run_lock.Owner) -> Iterator[None]:
    """Run a block that ends an attempt; an error of it is a line of the log."""
    try:
        with run_lock.release_on_disk_error(run_dir, me):
            yield
    except (UserError, FailedError) as error:
        print_line(f"error: {error}")
