"""The watch over a user's script: what is a hang, which rank is named, and how agents agree."""

import os
import subprocess
import sys
import time

import pytest

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.node import script_watch, stacks
from slurm_job_kit.jobs.node.script_watch import IdleNode, ScriptWatch, Signs, conclusion
from slurm_job_kit.jobs.node.torchrun import Node
from slurm_job_kit.jobs.records.nodes import AttemptPlan, HangConclusion, RankError, RankHang
from slurm_job_kit.jobs.rundir import RunDir, Timeline
from slurm_job_kit.jobs.spec import Launch, Spec

TICKS = os.sysconf("SC_CLK_TCK")
LIMIT_S = 20


def looks(limit_s, *signs):
    """An idle timer after a look every 10 s: (report, seconds of processor time) of rank 0."""
    idle = IdleNode(limit_s)
    for report, used_s in signs:
        seen = Signs((report,), int(used_s * TICKS), has_reported=report > 0)
        idle.look(10.0, {0: seen})
    return idle


SILENT = ((1, 0),) * 4  # begun, and 30 s without a sign


@pytest.mark.parametrize(
    ("limit_s", "signs", "expected"),
    [
        (LIMIT_S, SILENT, True),
        (LIMIT_S, SILENT[:3], False),  # not longer than the limit
        (LIMIT_S, [(n, 0) for n in range(4)], False),  # lines in the log, or progress calls
        (LIMIT_S, [(1, n) for n in range(4)], False),  # a tenth of a core
        (LIMIT_S, [(1, n * 0.05) for n in range(4)], True),  # the threads of a rank that waits
        (LIMIT_S, ((0, 0),) * 4, True),  # a configured limit holds before the first line, too
        ("auto", ((1, 0),) * 61, False),
        ("auto", ((1, 0),) * 62, True),  # 610 s
        ("auto", ((0, 0),) * 100, False),  # off until the first line
        # A gap of 70 s was no hang: the limit is 700 s.
        ("auto", [*((1, 0),) * 7, *((2, 0),) * 70], False),
        ("auto", [*((1, 0),) * 7, *((2, 0),) * 73], True),
    ],
)
def test_a_hang_has_no_report_no_line_and_no_processor_time(limit_s, signs, expected):
    assert looks(limit_s, *signs).is_hang is expected


def test_one_rank_of_a_node_that_works_or_ends_is_a_sign_of_life():
    idle = IdleNode(LIMIT_S)
    for n in range(5):
        idle.look(10.0, {0: Signs((1,), 0, True), 1: Signs((1,), n * TICKS, True)})
    assert not idle.is_hang
    idle.look(10.0, {0: Signs((1,), 0, True)})
    assert idle.seconds == 0.0


def state(rank, is_waiting):
    where = f"train.py:{rank} step"
    return RankHang(0.0, rank, f"n{rank + 1}", 7, "training", None, where, is_waiting)


@pytest.mark.parametrize(
    ("waiting", "silent", "text", "named"),
    [
        ([True, False], {}, "rank 1 on n2 (pid 7) is at train.py:1 step", (1,)),
        ([True, True], {}, "no rank lags: rank 0 on n1 (pid 7) is at train.py:0 step, rank 1", ()),
        ([False, False], {}, "no rank lags: rank 0 on n1", ()),
        ([False], {}, "rank 0 on n1 (pid 7) is at train.py:0 step", (0,)),
        ([False], {1: "n2"}, "rank 1 on n2: the node does not answer", (1,)),
    ],
)
def test_the_rank_that_does_not_wait_for_others_is_named(waiting, silent, text, named):
    states = {rank: state(rank, is_waiting) for rank, is_waiting in enumerate(waiting)}
    words, ranks = conclusion(states, silent)
    assert words.startswith(text) and ranks == named


# In place of torchrun and the wrapper of a rank.
WORKS, SLEEPS = "while :; do :; done", "sleep 100 & wait"


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path)
    run.attempt(1).path.mkdir()
    run.timeline("x").parent.mkdir()
    return run


@pytest.fixture
def begin(run, monkeypatch):
    """Begins the watch of a node with one rank of two, which does `work`; a short limit."""
    monkeypatch.setattr(script_watch, "TICK_S", 0.1)
    plan = AttemptPlan(1, "7", ("n1", "n2"), "127.0.0.1", "a test", "127.0.0.1:1", "7-1", 0.0, None)
    started: list[subprocess.Popen[bytes]] = []
    watches: list[ScriptWatch] = []

    def start(rank, work, hang_timeout_s=1):
        monkeypatch.setenv("SLURMD_NODENAME", f"n{rank + 1}")
        env = os.environ | {"WORK": work}
        torchrun = f'RANK={rank} WORLD_SIZE=2 sh -c "$WORK" & wait'
        started.append(subprocess.Popen(["sh", "-c", torchrun], env=env, start_new_session=True))
        spec = Spec(launch=Launch(script="x.py", hang_timeout_s=hang_timeout_s))
        watches.append(ScriptWatch(run, 1, Node(rank, plan, spec), spec))
        watches[-1].begin(started[-1].pid)
        return watches[-1]

    yield start
    for watch in watches:
        watch.close()
    for process in started:
        os.killpg(process.pid, 9)
        process.wait()


def test_all_agents_find_the_hang_and_leave_the_stacks_of_their_ranks(run, begin):
    watches = [begin(rank, SLEEPS) for rank in (0, 1)]
    assert all(watch.is_hang_found.wait(20) for watch in watches)
    here = run.attempt(1)
    hang, record = end_of(run)
    assert hang.unresponsive == () and "no rank lags: rank 0 on n1" in hang.error
    assert (record.kind, record.error) == ("hang", hang.error)
    for rank in (0, 1):
        assert f"rank {rank} on n{rank + 1}\n" in here.stacks(rank).read_text()


def test_a_rank_that_waits_while_another_one_computes_is_no_hang(run, begin):
    watches = [begin(0, SLEEPS), begin(1, WORKS)]
    asked = run.attempt(1).hang
    wait_until(asked.exists)
    wait_until(lambda: not asked.exists())
    wait_until(asked.exists)  # and again
    assert not any(watch.is_hang_found.is_set() for watch in watches)


class Clock:
    """The time, which may jump, as it does for a process that was suspended."""

    ahead_s = 0.0
    time = staticmethod(time.time)

    def monotonic(self):
        return time.monotonic() + self.ahead_s


def test_time_in_which_the_agent_was_suspended_is_no_hang(run, begin, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(script_watch, "time", clock)
    watch = begin(0, SLEEPS, hang_timeout_s=8)  # a look every 4 s
    clock.ahead_s = 1000.0
    assert not watch.is_hang_found.wait(3)
    clock.ahead_s += 1000.0
    assert not watch.is_hang_found.wait(2) and not run.attempt(1).hang.exists()


def test_the_rank_of_an_agent_that_does_not_answer_is_named(run, begin, monkeypatch):
    monkeypatch.setattr(script_watch, "ANSWER_LIMIT_S", 1.0)
    Timeline(run, "rank-00001", 1).event("spawn", host="n2", pid=8)
    assert begin(0, SLEEPS).is_hang_found.wait(20)
    hang, record = end_of(run)
    assert (hang.unresponsive, hang.waited_for) == ((1,), (1,))
    assert (record.rank, record.host) == (1, "n2")


def test_by_auto_the_first_line_of_any_rank_begins_the_watch(run, begin, monkeypatch):
    monkeypatch.setattr(script_watch, "MIN_LEARNED_S", 1.0)
    monkeypatch.setattr(script_watch, "LEARNED_FACTOR", 1)
    monkeypatch.setattr(script_watch, "LOOK_S", 0.5)
    log = run.attempt(1).rank_log(0)
    log.write_text("attempt 1: rank 0 of 2 on n1\n")
    watches = [begin(rank, SLEEPS, "auto") for rank in (0, 1)]
    with open(log, "a") as file:
        file.write("step 1\n")
    assert all(watch.is_hang_found.wait(20) for watch in watches)


def end_of(run):
    """The conclusion about the hang, and the only error record."""
    hang = records.read(HangConclusion, run.attempt(1).hang)
    (path,) = run.attempt(1).path.glob("*.error.json")
    record = records.read(RankError, path)
    assert hang is not None and record is not None
    return hang, record


def wait_until(condition, limit_s=20.0):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


HANGS = """
import faulthandler, signal, sys, time
def hang():
    print("hangs", flush=True)
    while True:
        time.sleep(100)
if sys.argv[1] == "registers":
    faulthandler.register(signal.SIGQUIT)
hang()
"""


@pytest.mark.parametrize("has_py_spy", [True, False])
@pytest.mark.parametrize("registers", [True, False])
def test_a_stack_comes_from_py_spy_or_else_from_a_handler_of_the_script(
    tmp_path, monkeypatch, has_py_spy, registers
):
    if not has_py_spy:
        monkeypatch.setattr(stacks, "py_spy", lambda: None)
    elif stacks.py_spy() is None:
        pytest.skip("py-spy is not installed")
    script, log = tmp_path / "hangs.py", tmp_path / "log"
    script.write_text(HANGS)
    argv = f"{sys.executable} {script} {'registers' if registers else ''}x & wait"
    argv = argv.replace("registersx", "registers")
    with open(log, "w") as out:
        wrapper = subprocess.Popen(["sh", "-c", argv], stdout=out, stderr=out)
    try:
        wait_until(lambda: "hangs" in log.read_text())
        (stack,) = stacks.stacks_of([wrapper.pid])
        (pid,) = stacks.pythons_below(wrapper.pid)
        assert stack.pid == pid
        if has_py_spy:
            assert stack.where == f"{script}:6 hang" and not stack.is_waiting
        else:
            assert stack.is_waiting and "there is no py-spy" in stack.text
            if registers:
                wait_until(lambda: "in hang" in log.read_text())
        assert os.path.exists(f"/proc/{pid}")
    finally:
        for each in (*stacks.pythons_below(wrapper.pid), wrapper.pid):
            os.kill(each, 9)
        wrapper.wait()
