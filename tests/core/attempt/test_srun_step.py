"""An srun step ends in bounded time after an agent failed, and what is left of it is ended."""

import errno
import queue
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest import mock

import pytest

from slurm_job_kit.jobs.attempt import srun_step
from slurm_job_kit.jobs.base import stop_signals
from slurm_job_kit.jobs.base.procfs import parent_of
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.nodes import AgentRecord, AttemptPlan
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Launch, Spec
from slurm_job_kit.jobs.runs import fact_reader
from slurm_job_kit.jobs.runs.evidence import stop_signals_at_start
from slurm_job_kit.jobs.slurm import cluster
from tests.core import run_files
from tests.core.attempt.attempt_kit import ended
from tests.core.run_files import write_json
from tests.core.waiting import wait_for

pytestmark = pytest.mark.long  # waits for limits of time
LIMIT_S = 100  # of what takes a second on an idle machine


@pytest.fixture
def run(run):
    """A run whose attempt 1 is open."""
    run_files.opened(run)
    return run


def plan_of(job_id):
    return records.decode(AttemptPlan, run_files.plan(job_id=job_id), "here")


PLAN = plan_of("7")


def node(run, rank, code, **fields):
    ended = {"host": "a", "torchrun_exit": code, "end": None if code is None else 9.0}
    run_files.node(run.attempt(1), rank, **ended | fields)


@pytest.fixture
def stand_in():
    """Starts a bash script in place of srun; returns the process and its first line of output."""
    with ExitStack() as started:

        def start(script):
            process = started.enter_context(
                subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, text=True)
            )
            started.callback(process.kill)
            assert process.stdout is not None
            line = process.stdout.readline()
            return process, line

        yield start


@pytest.fixture
def waiter(stand_in):
    """Stands for an srun that waits for a lost node and ignores SIGTERM."""
    process, _ = stand_in('trap "" TERM; echo; while :; do sleep 0.1; done')
    return process


class Shell:
    """The batch process, to which Slurm sends stop signals."""

    def __init__(self):
        self.stops = stop_signals.StopSignals()
        self._came: queue.Queue[signal.Signals] = queue.Queue()

    def write(self, name):
        self._came.put(signal.Signals[f"SIG{name}"])

    def arrived(self, _, seconds):
        came: list[signal.Signals] = []
        with suppress(queue.Empty):
            while True:
                came.append(self._came.get(seconds > 0 and not came, seconds))
        return came


@pytest.fixture
def shell(monkeypatch):
    shell = Shell()
    monkeypatch.setattr(stop_signals, "arrived", shell.arrived)
    return shell


@pytest.fixture
def watch(run, shell):
    """Starts `watch` of an srun in a thread; returns the thread."""

    def start(srun, job_id="7"):
        words = (run, plan_of(job_id), srun, shell.stops, tuple)
        thread = threading.Thread(target=srun_step.watch, args=words, daemon=True)
        thread.start()
        return thread

    return start


@pytest.fixture
def at_once(monkeypatch):
    """A watch that looks often and waits for nothing."""
    for limit in ("END_LIMIT_S", "KILL_AFTER_S", "POLL_S", "READ_INTERVAL_S"):
        monkeypatch.setattr(srun_step, limit, 0.05)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("failure", [{"torchrun_exit": 1}, {"error": "no such interface"}])
def test_srun_that_outlives_a_failed_agent_is_ended(run, waiter, shell, capfd, failure):
    run_files.node(run.attempt(1), 0, host="a", **{"torchrun_exit": None} | failure)
    srun_step.watch(run, PLAN, waiter, shell.stops, tuple)
    assert waiter.wait(LIMIT_S) == -signal.SIGKILL
    assert "srun is ended 0.05 s after a failure" in capfd.readouterr().err


def test_the_agents_get_the_prefix_of_the_spec_or_a_shield():
    prefix = ["apptainer", "exec", "a b"]
    contained = Spec(launch=Launch(command_prefix=prefix, python="/opt/python"))
    run = RunDir(Path("/run"))
    agent = ["bash", "/run/kit/slurm_job_kit/slurm/agent.sh", "/run", "3"]
    command = srun_step.agent_command(run, contained, 3)
    assert command == [*agent, *prefix, "/opt/python"]
    shield = srun_step.block_signals_prefix()
    assert srun_step.agent_command(run, Spec(), 3) == [*agent, *shield, sys.executable]


@pytest.mark.usefixtures("at_once")
def test_srun_that_outlives_all_agents_is_ended_though_none_failed(run, waiter, shell, capfd):
    """A node's slurmstepd was killed: srun waits for its task for ever."""
    node(run, 0, 0)
    node(run, 1, 0)
    srun_step.watch(run, PLAN, waiter, shell.stops, tuple)
    assert "after every agent ended" in capfd.readouterr().err
    assert waiter.wait(LIMIT_S) == -signal.SIGKILL


@pytest.mark.usefixtures("at_once")
def test_sruns_child_that_would_end_the_step_later_is_ended_first(run, stand_in, shell, tmp_path):
    node(run, 0, 1)
    killer = f"while kill -0 $$; do sleep 0.02; done; touch '{tmp_path}/killed-a-step'"
    srun, pid = stand_in(f'trap "" TERM; ({killer}) & echo $!; while :; do sleep 0.1; done')
    srun_step.watch(run, PLAN, srun, shell.stops, tuple)
    assert srun.wait(LIMIT_S) == -signal.SIGKILL
    wait_for(lambda: not parent_of(int(pid)))
    assert not (tmp_path / "killed-a-step").exists()


@pytest.mark.parametrize("code", [None, 1])
def test_the_srun_of_a_superseded_attempt_orders_nothing_any_more(
    run, stand_in, watch, tmp_path, monkeypatch, capfd, code
):
    """Its request to slurmctld would end the step of the job's next start: both have one id."""
    monkeypatch.setattr(srun_step, "POLL_S", 0.05)
    monkeypatch.setattr(srun_step, "READ_INTERVAL_S", 0.05)
    node(run, 0, code)
    ordering = f'trap "touch {tmp_path}/ordered" TERM; echo; while :; do sleep 0.1; done'
    srun, _ = stand_in(ordering)
    write_json(run.owner, run_files.claim())
    watching = watch(srun)
    watching.join(0.5)
    assert watching.is_alive()
    write_json(run.owner, run_files.claim(attempt=2))
    assert srun.wait(LIMIT_S) == -signal.SIGKILL
    watching.join(LIMIT_S)
    assert not (tmp_path / "ordered").exists()
    assert "attempt 1: srun is ended" in capfd.readouterr().err


@pytest.mark.parametrize("code", [None, 0])
@pytest.mark.usefixtures("at_once")
def test_srun_is_waited_for_as_long_as_no_agent_failed(run, waiter, watch, code):
    node(run, 0, code)
    watching = watch(waiter)
    watching.join(0.5)
    assert watching.is_alive()
    waiter.kill()
    watching.join(LIMIT_S)
    assert not watching.is_alive()


@pytest.mark.usefixtures("at_once")
def test_a_disk_that_does_not_answer_is_looked_at_again(run, waiter, shell, monkeypatch):
    stale = OSError(errno.ESTALE, "stale")
    failed = [AgentRecord("a", torchrun_exit=1, end=9.0)]
    bad = records.RecordError("no record")
    looks = mock.Mock(side_effect=[stale, bad, failed, bad])  # the last one is after the loop
    monkeypatch.setattr(srun_step, "read_agents", looks)
    srun_step.watch(run, PLAN, waiter, shell.stops, tuple)
    assert waiter.wait(LIMIT_S) == -signal.SIGKILL
    assert looks.call_count == 4


@pytest.mark.parametrize(("reason", "is_ended"), [("TimeLimit", True), ("None", False)])
def test_an_srun_that_lasts_into_the_end_of_the_time_limit_is_ended_in_time_to_decide(
    run, waiter, shell, watch, fake_slurm, monkeypatch, capfd, reason, is_ended
):
    monkeypatch.setattr(srun_step, "ASK_INTERVAL_S", 60.0)
    fake_slurm.answer("scontrol", f"   JobState=COMPLETING Reason={reason} Dependency=\n")
    write_json(run.site, {"kill_wait_s": 1})
    node(run, 0, None, signals=[{"t": 1.0, "signal": "SIGUSR1"}])
    watching = watch(waiter)
    shell.write("TERM")
    if not is_ended:
        wait_for(lambda: fake_slurm.calls)
        for _ in range(2):  # received, and one call for all of them
            watching.join(1.5)
            assert watching.is_alive()
            shell.write("TERM")
        waiter.kill()
    watching.join(LIMIT_S)
    assert len(fake_slurm.calls) == 1
    assert ("at the end of the time limit" in capfd.readouterr().err) == is_ended
    assert waiter.wait(LIMIT_S) == -signal.SIGKILL


def test_the_first_stop_of_the_shell_counts_and_a_later_one_is_for_the_next_attempt(shell):
    shell.write("USR1")
    shell.write("TERM")
    assert shell.stops.wait(5) == ["SIGUSR1", "SIGTERM"]
    assert (shell.stops.take(), shell.stops.take()) == (["SIGUSR1"], [])
    shell.write("HUP")
    assert shell.stops.take() == ["SIGHUP"]


def test_what_srun_left_behind_is_ended_and_who_is_silent_is_named(run, fake_slurm, monkeypatch):
    write_json(run.site, {"slurmd_port": 7000})
    answering = {("10.0.0.1", 7000)}
    monkeypatch.setattr(cluster, "is_answering", lambda *place: place[:2] in answering)
    node(run, 0, None, step_id="3", address="10.0.0.1")
    left = ended(run).silent
    srun_step.end_leftover("7", left)
    assert fake_slurm.cancelled == ["7.3"]
    assert srun_step.unreachable_nodes(fact_reader.read(run, 1), left) == ("b",)
    for rank in range(2):
        node(run, rank, 1, step_id="4")
    srun_step.end_leftover("7", ended(run).silent)
    assert fake_slurm.cancelled == ["7.3"]


def test_many_nodes_are_asked_at_the_same_time(run, monkeypatch):
    """Each silent node takes ANSWER_TIMEOUT_S, and a switch may have cut off hundreds."""
    nodes = [f"n{number}" for number in range(32)]
    together = threading.Barrier(len(nodes), timeout=LIMIT_S)

    def is_answering(host, *_):
        together.wait()
        return host == "n7"

    monkeypatch.setattr(cluster, "is_answering", is_answering)
    silent = srun_step.unreachable_nodes(fact_reader.read(run, 1), nodes)
    assert silent == tuple(node for node in nodes if node != "n7")


def test_srun_is_ended_where_a_node_is_lost(run, waiter, shell, capfd):
    lost = iter([(), (), ("b",)])
    srun_step.watch(run, PLAN, waiter, shell.stops, lambda: next(lost))
    assert waiter.wait(LIMIT_S) == -signal.SIGKILL
    assert "srun is ended because b does not answer" in capfd.readouterr().err


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_node_that_was_alone_is_looked_for_by_its_name(run, monkeypatch, address):
    node(run, 0, None, address=address)  # loopback: on every node its own
    monkeypatch.setattr(cluster, "is_answering", lambda place, *_: place == address)
    assert srun_step.unreachable_nodes(fact_reader.read(run, 1), ["a"]) == ("a",)


def test_a_node_without_a_record_is_looked_for_at_the_address_of_slurm(
    run, fake_slurm, monkeypatch
):
    """DNS may not know a node's name, and an unknown name counts as a node that answers."""
    shown = "NodeName=b Arch=x\n   NodeAddr=10.0.0.7 NodeHostName=vm-b\n"
    fake_slurm.answer("scontrol", shown, when="show node *")
    monkeypatch.setattr(cluster, "is_answering", lambda place, *_: place != "10.0.0.7")
    assert srun_step.unreachable_nodes(fact_reader.read(run, 1), ["a", "b"]) == ("b",)


@pytest.mark.parametrize(
    ("codes", "srun_exit", "stops"),
    [
        ((None, "missing"), 143, ("SIGTERM",)),
        (("missing", "missing"), 138, ("SIGUSR1",)),
        (("missing", "missing"), 0, ()),
        (("missing", "missing"), 1, ()),
        (("missing", "missing"), 137, ()),
        # srun itself sends SIGTERM to the others.
        ((1, "missing"), 143, ()),
        # An agent with a record has recorded all its signals.
        ((None, None), 143, ()),
    ],
)
def test_an_agent_that_dies_of_a_stop_before_its_first_record_was_stopped(
    run, codes, srun_exit, stops
):
    for rank, code in enumerate(codes):
        if code != "missing":
            node(run, rank, code)
    assert stop_signals_at_start(fact_reader.read(run, 1), srun_exit) == stops


@pytest.fixture
def watched(waiter, watch, fake_slurm, monkeypatch):
    """`watch` of a running job 7."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    watching = watch(waiter)
    yield
    waiter.kill()
    watching.join(LIMIT_S)
    assert not watching.is_alive()


def shows(slurm, state, restarts=0):
    slurm.answer("scontrol", f"   JobState={state} Reason=None\n   Requeue=1 Restarts={restarts}\n")


# --signal=B:NAME@N, also as a number or with SIG: the batch shell alone gets it.
@pytest.mark.parametrize("name", ["USR1", "USR2", "TERM", "INT", "HUP", "QUIT", "ALRM"])
@pytest.mark.usefixtures("watched")
def test_a_stop_that_only_the_batch_shell_got_reaches_the_agents(run, shell, fake_slurm, name):
    shows(fake_slurm, "RUNNING")
    node(run, 0, None)
    shell.write(name)
    wait_for(lambda: fake_slurm.cancelled)
    assert fake_slurm.cancelled == [f"--signal={name} 7"]


@pytest.mark.parametrize(("state", "restarts"), [("COMPLETING", 0), ("RUNNING", 1)])
@pytest.mark.usefixtures("watched")
def test_a_job_that_ends_or_runs_again_elsewhere_gets_no_stop(
    run, shell, fake_slurm, state, restarts
):
    shows(fake_slurm, state, restarts)
    node(run, 0, None)
    shell.write("USR1")
    wait_for(lambda: fake_slurm.calls)
    assert fake_slurm.cancelled == []
