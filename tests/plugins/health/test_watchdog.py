"""The hang watchdog: its limits, what it concludes, and real processes that hang."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Launch, Spec
from slurm_job_kit.jobs.node.torchrun import variables_of_spec
from slurm_job_kit.trainer.errors import EXIT_FAILED
from slurm_job_kit.trainer.plugins.health.diagnosis import RankHang, RankPlace, diagnose, laggards
from slurm_job_kit.trainer.plugins.health.phases import limit_s
from slurm_job_kit.trainer.plugins.health.watchdog import IdleTimer
from tests.core.waiting import wait_for

REPOSITORY = Path(__file__).resolve().parents[3]
LIMIT_S = 1
# One rank: in the loop it beats until the file `hang` appears, in its start-up it begins a phase
# once. Then it hangs in its own way.
RANK = """
import ctypes, json, os, sys, time
from pathlib import Path
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.trainer import errors
from slurm_job_kit.trainer.process.events import Events
from slurm_job_kit.trainer.process.watcher import Pulse
from slurm_job_kit.trainer.plugins.health import phases, watchdog
from slurm_job_kit.trainer.plugins.health.diagnosis import RankHang

rank, world_size, limit_s = map(int, sys.argv[1:4])
folder, way, phase = Path(sys.argv[4]), *sys.argv[5:7]
watchdog.TICK_S, watchdog.MAX_TICK_S, watchdog.GRACE_S = 0.1, 0.2, 4
phases.START_UP_FACTOR, phases.MIN_START_UP_LIMIT_S, watchdog.procfs.STILL_LIMIT_S = 1, 0, 1
attempt_dir = RunDir(folder).attempt(1)
events = Events(rank)
events.open(RunDir(folder), 1)
events.event("start", host=os.uname().nodename, pid=os.getpid())

def wait_for_peers():
    time.sleep(60)

def lose_a_peer():
    while not RankHang.path(attempt_dir, rank).exists():
        time.sleep(0.02)
    errors.fail(RuntimeError("Connection closed by peer"), rank, attempt_dir)

def spin_on_a_lock():
    while True:
        pass

def wait_under_the_gil():
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)

step = 0
pulse = Pulse()
dog = watchdog.Watchdog(rank, world_size, pulse)
if way != "lost":
    dog.open(RunDir(folder), 1, limit_s)
dog._timer.hang_timeout_s = limit_s
dog.start()
if phase:
    pulse.beat(phase)
while not (folder / "hang").exists() and not (phase and step):
    step += 1
    if not phase:
        pulse.beat("batch", 7)
    time.sleep(0.02)
    (folder / f"beating-{rank}").touch()
if way in ("wait", "lose a peer", "lost"):
    globals()["__name__"] = "slurm_job_kit.trainer.training.loop"
    lose_a_peer() if way == "lose a peer" else wait_for_peers()
elif way == "spin":
    spin_on_a_lock()
elif way == "under the gil":
    wait_under_the_gil()
"""


class Ranks:
    """Some of these processes, in a run directory; `in_phases` are those of their start-up."""

    def __init__(self, folder, *ways, limit_s, in_phases=()):
        self.run = RunDir(folder)
        self.attempt = self.run.attempt(1)
        self.attempt.path.mkdir()
        self.processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-c", RANK),
                    *map(str, (rank, len(ways), limit_s, folder)),
                    *(way, in_phases[rank] if in_phases else ""),
                ],
                cwd=REPOSITORY,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank, way in enumerate(ways)
        ]
        self.pids = [process.pid for process in self.processes]
        beating = [folder / f"beating-{rank}" for rank in range(len(ways))]
        wait_for(lambda: all(path.exists() for path in beating))

    def hang(self):
        (self.run.path / "hang").touch()

    def signal(self, number, *ranks):
        for rank in ranks:
            os.kill(self.pids[rank], number)

    def end(self, *ranks):
        """(exit statuses, outputs) of these ranks, which must end by themselves."""
        ended = [self.processes[rank] for rank in ranks]
        outputs = [process.communicate(timeout=20)[0] for process in ended]
        return [process.returncode for process in ended], outputs

    def kill(self):
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def hang_error(self):
        """The record of the rank that reports the hang; all others refer to it."""
        records = [read_json(self.attempt.rank_error(r)) for r in range(len(self.processes))]
        written = [record for record in records if record is not None]
        assert {record["kind"] for record in written} == {"hang"}
        (first,) = [record for record in written if not record["caused_by_peer"]]
        return first


@pytest.fixture
def start(tmp_path):
    started = []

    def start_ranks(*ways, limit_s=LIMIT_S, in_phases=()):
        started.append(Ranks(tmp_path, *ways, limit_s=limit_s, in_phases=in_phases))
        return started[-1]

    yield start_ranks
    for ranks in started:
        ranks.kill()


def test_ranks_that_do_not_answer_are_named_and_all_others_write_their_stacks(start):
    ranks = start("wait", "wait", "stopped", "under the gil")
    ranks.signal(signal.SIGSTOP, 2)
    ranks.hang()
    statuses, outputs = ranks.end(0, 1)
    assert statuses == [EXIT_FAILED, EXIT_FAILED]
    error, host = ranks.hang_error(), os.uname().nodename
    silent = [f"rank {rank} on {host} (pid {ranks.pids[rank]}) does not answer" for rank in (2, 3)]
    assert error["error"].startswith("no progress for ")
    assert f"(limit {LIMIT_S} s): {', '.join(silent)}; the stacks" in error["error"]
    assert read_json(ranks.attempt.hang)["waited_for"] == [2, 3]
    for output in outputs:
        assert "in wait_for_peers" in output and "in _watch" in output
    # torchrun would wait for those two. Stuck in C, one has its stack in its log all the same.
    statuses, (_, output) = ranks.end(2, 3)
    assert statuses == [-signal.SIGKILL] * 2 and "in wait_under_the_gil" in output


def test_a_rank_in_a_python_loop_is_named_with_its_place(start):
    ranks = start("wait", "spin", "lose a peer")
    ranks.hang()
    statuses, outputs = ranks.end(0, 1, 2)
    assert statuses == [EXIT_FAILED] * 3
    error = ranks.hang_error()["error"]
    assert f"(pid {ranks.pids[1]}) is at <string>:" in error
    assert read_json(ranks.attempt.hang)["waited_for"] == [1]
    assert "spin_on_a_lock, in batch of step 7; the stacks" in error
    assert "rank 0 on" not in error and "rank 2 on" not in error
    assert "in spin_on_a_lock" in outputs[1]
    # The error of a main thread that loses its peer does not hide the reason.
    assert "Connection closed" not in outputs[2]


@pytest.mark.parametrize("is_known", [False, True])
def test_a_rank_without_its_run_directory_ends_by_itself(start, is_known):
    if is_known:
        ranks, words = start("wait"), "is out of reach"
        ranks.attempt.path.rename(ranks.run.path / "moved")
        ranks.hang()
    else:
        ranks, words = start("lost", limit_s=1, in_phases=("rendezvous",)), "it is at <string>:"
    statuses, (output,) = ranks.end(0)
    assert statuses == [EXIT_FAILED] and words in output and "in wait_for_peers" in output
    assert not ranks.attempt.hang.exists()


def test_a_device_that_does_not_answer_makes_its_node_bad(start):
    ranks = start("spin", limit_s=1, in_phases=("device test",))
    assert ranks.end(0)[0] == [EXIT_FAILED]
    record = read_json(ranks.attempt.rank_error(0))
    assert record["kind"] == "bad_node" and "(limit 1 s) in device test" in record["error"]


def test_ranks_of_one_node_that_all_stand_still_before_their_data_end(start, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    ranks = start("wait", "spin", limit_s=100, in_phases=("rendezvous", "import"))
    with pytest.raises(subprocess.TimeoutExpired):
        ranks.processes[0].wait(2 * LIMIT_S)
    ranks.signal(signal.SIGSTOP, 1)
    statuses, outputs = ranks.end(0)
    assert statuses == [EXIT_FAILED] and "in wait_for_peers" in outputs[0]
    assert "(limit 1 s) in rendezvous" in ranks.hang_error()["error"]


@pytest.mark.parametrize(("phase", "ranks_here"), [("data", "1"), ("rendezvous", "0")])
def test_a_rank_may_wait_for_its_data_and_for_other_nodes(start, monkeypatch, phase, ranks_here):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks_here)
    ranks = start("wait", limit_s=100, in_phases=(phase,))
    with pytest.raises(subprocess.TimeoutExpired):
        ranks.processes[0].wait(2 * LIMIT_S)


def test_an_import_of_torch_that_hangs_ends_the_rank(tmp_path):
    """The watchdog of a real rank runs before its import of torch, with the limit of its spec."""
    folder, broken = tmp_path / "run", tmp_path / "broken"
    broken.mkdir()
    (broken / "torch.py").write_text("while True:\n    pass\n")
    run = RunDir(folder)
    run.attempt(1).path.mkdir(parents=True)
    spec = Spec(launch=Launch(hang_timeout_s=1))
    run.spec.write_text(spec.to_json())
    script = (
        "import runpy; from slurm_job_kit.trainer.plugins.health import phases, watchdog; "
        "phases.START_UP_FACTOR, phases.MIN_START_UP_LIMIT_S = 1, 0; watchdog.TICK_S = 0.1; "
        "runpy.run_module('trainer', run_name='__main__', alter_sys=True)"
    )
    environ = {**os.environ, **variables_of_spec(spec), "KIT_ATTEMPT": "1"}
    environ |= {"RANK": "0", "WORLD_SIZE": "1", "PYTHONPATH": f"{broken}:{REPOSITORY}"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == EXIT_FAILED, done.stderr
    record = read_json(run.attempt(1).rank_error(0))
    assert record["kind"] == "hang" and "(limit 1 s) in import: rank 0 on " in record["error"]
    assert "torch.py:1 <module>, in import" in record["error"]


def test_time_in_which_the_process_did_not_run_does_not_count():
    timer = IdleTimer(30)
    timer.tick(86_400.0, None)
    assert timer.seconds == 2.0 < timer.limit_s


def test_there_is_a_limit_for_the_start_up_and_one_for_the_steps():
    assert (limit_s("data", "auto"), limit_s("batch", "auto")) == (1800, 540)
    assert (limit_s("data", 60), limit_s("batch", 60)) == (600, 60)
    assert (limit_s("data", 1), limit_s("batch", 3600)) == (30, 540)


def test_a_rank_that_was_slow_looks_for_the_hang_of_another_one_at_once():
    timer = IdleTimer("auto")
    for _ in range(500):
        timer.tick(1.0, None)
    timer.tick(1.0, "rendezvous")
    assert timer.seconds == 0.0 and timer.is_suspicious
    timer.tick(1.0, "batch")
    timer.tick(1.0, None)
    assert not timer.is_suspicious


def found(rank, step=5, is_waiting=True, what="batch"):
    place = (f"n{rank}", 100 + rank, what, step, "loop.py:1 run")
    return RankHang(rank, *place, is_waiting)


IMPORTS = {"step": None, "what": "import"}
RENDEZVOUS = {"step": None, "what": "rendezvous", "is_waiting": False}


# What is known of each rank, by its number -> the suspect.
@pytest.mark.parametrize(
    ("ranks", "suspect"),
    [
        ([{}, {"is_waiting": False}, {"step": 4}], 2),  # steps behind, even if it waits
        ([{}, {"is_waiting": False}, {}], 1),
        ([{"step": 0}, {"step": None}], 1),
        ([RENDEZVOUS, IMPORTS], 1),  # an earlier phase, even if it waits
    ],
)
def test_the_suspect_is_the_rank_that_is_behind_or_else_does_not_wait(ranks, suspect):
    findings = [found(rank, **known) for rank, known in enumerate(ranks)]
    assert laggards(findings) == [findings[suspect]]


def test_the_diagnosis_says_so_if_no_rank_stands_out():
    text = diagnose({0: found(0), 1: found(1)}, {})
    assert text.startswith("no rank lags: rank 0 on n0 (pid 100) is at loop.py:1 run, in batch")


def test_the_diagnosis_stays_short_in_a_large_job():
    findings = {rank: found(rank) for rank in range(1000)}
    unresponsive = {rank: RankPlace("n", 0) for rank in range(1000, 2000)}
    assert len(diagnose(findings, unresponsive)) < 400
    assert "and 996 more" in diagnose(findings, {})


def test_a_limit_beyond_that_of_torchs_collectives_is_refused(refuse):
    message = "launch.hang_timeout_s: must be at most 540, or auto, not 600\n  hint: torch ends"
    assert message in refuse("launch: {hang_timeout_s: 600}")
