"""The node agent's work: start torchrun, send a stop to the ranks, write the agent's record."""

import contextlib
import importlib.util
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from .. import hooks
from ..base import environment, files, gpus, procfs
from ..base.console import BestEffort, print_line, with_time
from ..base.environment import Program
from ..base.errors import FailedError, UserError, in_words
from ..base.prctl import die_with_parent
from ..base.procfs import Standstill, children
from ..base.stop_signals import AWAITED, END_TORCHRUN, STOP_SIGNALS, arrived, send
from ..contract import records
from ..contract.known_causes import ENDED
from ..contract.rank_start import RANKS_DIR
from ..contract.records.nodes import AgentRecord, AttemptPlan, RankError, ReceivedSignal, node_name
from ..contract.records.timeline import Timeline
from ..contract.rundir import AttemptDir, RunDir
from ..contract.spec import Spec
from . import rendezvous
from .oom import limit_bytes, oom_kills
from .signed_torchrun import FORKED
from .torchrun import END_LIMIT, TRAINER, Node, stop_signal, torchrun_command

REPEAT_S = 1.0
# torchrun waits without a limit for the answer of a rendezvous store whose node is cut off or
# stopped. So the agent kills a torchrun that has no ranks for too long.
# START_LIMIT_S: before its ranks start, torchrun imports torch, connects to the store
# (read_timeout) and waits for the other nodes (join_timeout). It runs every few seconds meanwhile:
# one that stands still gets SIGABRT before, and writes its stacks (-X faulthandler).
# END_LIMIT_S: after its ranks ended, torchrun waits up to 300 s for those of the other nodes.
# Source: torch.distributed.elastic, exit_barrier.
START_LIMIT_S = 1200.0
END_LIMIT_S = 330.0


def prepare_torchrun(agent_pid: int) -> None:
    """Between fork and exec: make torchrun die with the agent and inherit ignored stop signals."""
    die_with_parent()
    if os.getppid() != agent_pid:  # the agent died before prctl(): the kernel sends no signal
        os._exit(1)
    signal.signal(END_TORCHRUN, signal.SIG_DFL)  # the shell that submitted may ignore it
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)  # the agent holds them back


class Agent:
    """Runs one torchrun and handles the signals that arrive meanwhile."""

    def __init__(self, run_dir: RunDir, attempt: int, node: Node, num_gpus: int = 0) -> None:
        """num_gpus: that the job asked for on the node, and that its ranks see."""
        self.attempt_dir = run_dir.attempt(attempt)
        self.node = node
        self.timeline = Timeline(run_dir, f"agent-{node.rank:05d}", attempt)
        self.num_gpus = num_gpus
        self.oom_kills_before = oom_kills()
        # A record that cannot be written (full disk) must not end the training.
        self.best_effort = BestEffort(f"agent on {node.host}")
        self.signals: list[ReceivedSignal] = []
        self.ranks_dir = ""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would take away exit codes
        signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)

    def run(self, command: list[str], env: dict[str, str], stop: signal.Signals | None) -> int:
        """Run torchrun to its end; returns its exit code (-N: killed by signal N).

        `stop`: the signal on which the ranks stop; None: the ranks are never signalled.
        """
        self.ranks_dir = env.get(RANKS_DIR, "")
        self.write_record(None)
        self.event("torchrun", host=self.node.host, nproc_per_node=self.node.nproc)
        torchrun = self.start_torchrun(command, env)
        has_ranks, rankless_s, still = False, 0.0, Standstill()
        end_limit_s = float(env.get(END_LIMIT, END_LIMIT_S))
        while torchrun.poll() is None:
            began = time.monotonic()
            new = self.wait_for_signal()
            ranks = children(torchrun.pid)
            if FORKED in itertools.takewhile("--".__ne__, command):  # no argument of a script
                ranks = children(*ranks)
            has_ranks = has_ranks or bool(ranks)
            # At most two intervals per turn: time in which the job was suspended does not count.
            turn_s = min(time.monotonic() - began, 2 * REPEAT_S)
            rankless_s = 0.0 if ranks else rankless_s + turn_s
            if rankless_s > (limit_s := end_limit_s if has_ranks else START_LIMIT_S):
                what = "other nodes to end" if has_ranks else "its ranks to start"
                print_line(
                    f"{self.node.host}: torchrun killed: {limit_s:g} s of waiting for {what}"
                )
                torchrun.kill()
                rankless_s = 0.0  # one line, also of a torchrun that a file system holds
            started = [*children(torchrun.pid), torchrun.pid]  # with the server that forks ranks
            if not has_ranks and still.add(turn_s, started) > procfs.STILL_LIMIT_S:
                self.abort(torchrun, started, still.seconds)
                still = Standstill()
            if not self.signals:
                continue
            # Before the first rank there is nothing to save. Later an empty list means that all
            # ranks have ended, and torchrun ends by itself.
            if not has_ranks:
                torchrun.send_signal(END_TORCHRUN)
            elif stop is not None:
                send(stop, ranks)
            self.show_stop()  # after the signals: a slow file system must not delay the stop
            for name in new:
                self.event("signal", signal=name)
                self.write_record(None)
        self.write_record(torchrun.returncode)
        self.event("torchrun_end", exit_code=torchrun.returncode)
        return torchrun.returncode

    def start_torchrun(self, command: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start torchrun, with its output in a file; in the agent's output if the file fails."""
        path, log = self.attempt_dir.torchrun_log(self.node.rank), None
        prepare = partial(prepare_torchrun, os.getpid())
        with contextlib.ExitStack() as opened:
            with self.best_effort():
                log = opened.enter_context(open(path, "ab"))
            return subprocess.Popen(command, env=env, preexec_fn=prepare, stdout=log, stderr=log)

    def abort(self, torchrun: subprocess.Popen[bytes], pids: list[int], still_s: float) -> None:
        """End a torchrun that stands still; its log ends with its stacks and the reason."""
        text = f"{ENDED}it stood still for {still_s:.0f} s before its ranks began"
        print_line(f"{self.node.host}: {text}")
        send(signal.SIGABRT, pids)
        with contextlib.suppress(subprocess.TimeoutExpired):
            torchrun.wait(REPEAT_S)
        with self.best_effort(), open(self.attempt_dir.torchrun_log(self.node.rank), "a") as log:
            log.write(f"{text}\n")

    def show_stop(self) -> None:
        """Create the file in which a script can see the stop; its time is the last sign of life."""
        with self.best_effort():
            self.attempt_dir.stop_requested.touch()
            os.utime(self.attempt_dir.stop_requested, (time.time(), time.time()))

    def event(self, name: str, **fields: Any) -> None:
        """Append the event `name`, with the present time, to the timeline."""
        with self.best_effort():
            self.timeline.event(name, **fields)

    def wait_for_signal(self) -> list[str]:
        """Wait up to REPEAT_S for a signal; returns names of stop signals that are new."""
        known = {signal.SIGCHLD.name, *(each.signal for each in self.signals)}
        new = [each.name for each in arrived(AWAITED, REPEAT_S) if each.name not in known]
        self.signals += [ReceivedSignal(round(time.time(), 3), name) for name in new]
        return new

    def write_record(self, exit_code: int | None) -> None:
        """Write the agent's record, which `attempt.close` reads; `exit_code` is torchrun's."""
        now, before = oom_kills(), self.oom_kills_before
        kills = 0 if now is None or before is None else now - before
        limit = limit_bytes() if kills else None
        ranks = () if exit_code is None else self.ranks()
        record = AgentRecord(
            host=self.node.host,
            address=self.node.address,
            # `attempt.close` cancels the srun step by this id if srun has ended before its step.
            step_id=os.environ.get("SLURM_STEP_ID"),
            signals=tuple(self.signals),
            torchrun_exit=exit_code,
            end=None if exit_code is None else round(time.time(), 3),
            oom_kill=kills,
            memory_limit_mib=None if limit is None else limit >> 20,
            gpus=self.num_gpus or None,
            ranks=ranks,
            errors=self.errors_of(ranks),
        )
        with self.best_effort():
            records.write(self.attempt_dir.agent(self.node.rank), record)

    def ranks(self) -> tuple[int, ...]:
        """Return the ranks that began on this node."""
        with contextlib.suppress(OSError):
            return tuple(sorted(int(x) for x in os.listdir(self.ranks_dir) if x.isdecimal()))
        return ()

    def errors_of(self, ranks: Iterable[int]) -> tuple[RankError, ...]:
        """Return what the ranks of this node recorded, so that `attempt.close` reads one file."""
        with contextlib.suppress(OSError, records.RecordError):  # then that reads them itself
            found = [records.read(RankError, self.attempt_dir.rank_error(rank)) for rank in ranks]
            return tuple(error for error in found if error is not None)
        return ()


def wait_for_plan(attempt_dir: AttemptDir, timeout_s: float = 60) -> AttemptPlan:
    """Wait until this node's file system shows plan.json; returns the plan.

    Raises: SystemExit after timeout_s; OSError if the run directory cannot be read.
    """
    deadline = time.monotonic() + timeout_s
    while (plan := records.read(AttemptPlan, attempt_dir.plan)) is None:
        if time.monotonic() > deadline:
            text = f"{attempt_dir.plan} is not there after {timeout_s} s"
            hint = "runs_root must lie on a file system that all nodes share"
            sys.exit(with_time(f"{node_name()}: {text}\n  hint: {hint}"))
        time.sleep(0.1)
    return plan


@contextlib.contextmanager
def temporary_directory(env: dict[str, str]) -> Iterator[str]:
    """Run a block with a directory of this node for torchrun, which leaves its own ones behind.

    env: of torchrun; gets the TMPDIR that can be used, and RANKS_DIR. Raises: FailedError.
    """
    env["TMPDIR"] = environment.temporary_folder(env)
    try:
        directory = tempfile.TemporaryDirectory(
            prefix="torchrun-", dir=env["TMPDIR"], ignore_cleanup_errors=True
        )
    except OSError as error:
        hint = "free space there, or set TMPDIR to a directory of the node"
        what = f"{node_name()}: no temporary directory for torchrun: {error}"
        raise FailedError(what, hint) from error
    with directory as path:
        env[RANKS_DIR] = path
        yield path


def with_kit_here(run_dir: RunDir, here: Path, env: dict[str, str]) -> dict[str, str]:
    """Return the environment of ranks that import the frozen kit from a copy on this node, `here`.

    Each would do about 2,000 operations on the shared disk. Without space here they do.
    """
    try:  # without bytecode that another node is writing
        shutil.copytree(run_dir.kit, here, ignore=shutil.ignore_patterns("*.pyc.*"))
    except OSError as error:
        shutil.rmtree(here, ignore_errors=True)
        why = error.args[0][0][2] if isinstance(error, shutil.Error) else error  # of the first file
        print_line(f"{node_name()}: the ranks import the kit from {run_dir.kit}: {why}")
        return env
    return env | {"PYTHONPATH": env["PYTHONPATH"].replace(str(run_dir.kit), str(here))}


def this_node(rank: int, plan: AttemptPlan, spec: Spec) -> Node:
    """Return this node in the attempt, once it reaches the first one.

    Raises: FailedError where it does not, and without torch; UserError for launch.interface.
    """
    if importlib.util.find_spec("torch") is None:
        hint = "install torch there, or set launch.python to an interpreter that has it"
        raise FailedError(f"{node_name()}: launch.python: {sys.executable} has no torch", hint)
    try:
        with contextlib.suppress(OSError):  # without a route now: one may come back
            Node(rank, plan, spec)
        if rank != 0 and (problem := rendezvous.why_unreachable(plan)):
            hint = "set launch.interface to an interface that leads to all nodes, or ask the site"
            raise FailedError(f"{node_name()}: {problem}", hint)
        return Node(rank, plan, spec)
    except OSError as error:
        what = f"{node_name()}: no network route to the first node at {plan.head.address}: {error}"
        raise FailedError(what, "ask the site how nodes reach each other") from error


def end_without_torchrun(attempt_dir: AttemptDir, rank: int, error: Exception) -> NoReturn:
    """End an agent that does not start torchrun; `attempt.close` reads the first line of its error.

    A UserError is a mistake that a retry would repeat; anything else may be a fault of the node.
    """
    reason, host = str(error).partition("\n")[0], node_name()
    step_id, now = os.environ.get("SLURM_STEP_ID"), round(time.time(), 3)
    with BestEffort(f"agent on {host}")():
        if isinstance(error, UserError):
            record = AgentRecord(host, step_id=step_id, end=now, error=reason)
            records.write(attempt_dir.agent(rank), record)
        else:
            files.write_atomic(attempt_dir.agent_error(rank), f"{reason}\n")
    sys.exit(with_time(f"error: {error}"))


def main(argv: list[str]) -> int:
    """Run one node's part of an attempt; returns 0 if its torchrun exited with 0.

    argv: RUN_DIR ATTEMPT --node-rank=N, as slurm/agent.sh has it.
    """
    run_dir, rank = RunDir(Path(argv[0])), int(argv[2].partition("=")[2])
    attempt_dir = run_dir.attempt(int(argv[1]))
    try:
        spec = Spec.read(run_dir.spec)
        plan = wait_for_plan(attempt_dir)
    except (OSError, UserError) as error:
        sys.exit(with_time(f"{node_name()}: the run directory cannot be read: {error}"))
    try:
        return run(run_dir, spec, plan, this_node(rank, plan, spec))
    except Exception as error:
        if not isinstance(error, (UserError, FailedError)):  # a mistake of the kit or a plugin
            traceback.print_exc()
            error = FailedError(f"{node_name()}: {in_words(error)}")
        end_without_torchrun(attempt_dir, rank, error)


def run(run_dir: RunDir, spec: Spec, plan: AttemptPlan, node: Node) -> int:
    """Run torchrun on this node; returns 0 if it exited with 0. Raises: UserError, FailedError."""
    env = node.environment(spec, run_dir, plan)
    with temporary_directory(env) as log_dir:
        command = torchrun_command(spec, run_dir, node.options(plan, log_dir))
        command, env = hooks.launch_command(Program.TORCHRUN, command, env, spec)
        if TRAINER in command:  # each rank imports the kit itself
            env = with_kit_here(run_dir, Path(log_dir, "kit"), env)
        num_gpus = spec.slurm.num_gpus or gpus.allocated_gpus(env) or 0
        agent = Agent(run_dir, plan.attempt, node, num_gpus)
        if node.rank == 0:  # once: the others differ in is_host, --local-addr and --log-dir
            print_line(f"attempt {plan.attempt}, {node.host}: {shlex.join(command)}")
        return int(agent.run(command, env, stop_signal(spec.launch)) != 0)
