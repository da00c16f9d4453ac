"""Hangs and broken disks in a training under a real torchrun."""

import contextlib
import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from slurm_job_kit.jobs.checkpoint import reader
from slurm_job_kit.jobs.checkpoint.names import checkpoint_name, checkpoint_names, checkpoint_step
from slurm_job_kit.jobs.records.training import read_progress_step
from slurm_job_kit.jobs.rundir import RunDir, read_json, read_jsonl
from slurm_job_kit.jobs.spec import Checkpoint, Launch, Log, Spec, Train
from slurm_job_kit.trainer.stop import EXIT_STOPPED_IN_STARTUP, HANDLED_SIGNALS
from tests.local.local_kit import wait_for
from tests.local.test_trainer import (
    REPOSITORY,
    TINY,
    environment,
    rank_logs,
    start_attempt,
    torchrun,
)

HANG_TIMEOUT_S = 5
EPOCH = 5  # steps, at any number of ranks
LAST_STEP = 20


def make_run(path, num_ranks=3, **model_args):
    run = RunDir(path)
    for folder in (run.checkpoints, run.timeline("x").parent):
        folder.mkdir(parents=True)
    args: dict[str, Any] = {
        **TINY,
        "model": "tests.local.misbehaving:misbehaving",
        "model_args": model_args,
    }
    args["micro_batch_size"] = 12 // num_ranks
    launch = Launch(stop_check_steps=1, hang_timeout_s=HANG_TIMEOUT_S)
    run.spec.write_text(Spec(launch=launch, train=Train(**args), log=Log(every_steps=3)).to_json())
    return run


def events_of(run, rank, attempt, name):
    """The events of this name in a rank's timeline of an attempt."""
    events = read_jsonl(run.timeline(f"rank-{rank:05d}"))
    return [e for e in events if (e["event"], e["attempt"]) == (name, attempt)]


class Attempt:
    """One torchrun of the kit on a run directory; it ends with the block at the latest."""

    def __init__(self, run, number=1, num_ranks=3):
        self.run, self.number, self.num_ranks = run, number, num_ranks
        self.dir = run.attempt(number)
        self.dir.path.mkdir()
        run.owner.write_text(json.dumps({"attempt": number}))
        self.process = start_attempt(run, number, num_ranks)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            for pid in self.pids().values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.terminate()
            self.process.wait(60)

    def pids(self):
        """{rank: pid} of the ranks that started."""
        return {
            rank: event["pid"]
            for rank in range(self.num_ranks)
            for event in events_of(self.run, rank, self.number, "start")
        }

    def end(self, limit_s=100):
        """(exit status, all output); fails if it takes longer than `limit_s`."""
        output, _ = self.process.communicate(timeout=limit_s)
        return self.process.returncode, output + rank_logs(self.run, self.number)


@pytest.fixture(scope="module")
def hung(tmp_path_factory):
    """A run whose rank 2 stops in its first attempt, and whose rank 1 loops in its second."""
    plans = {
        "1": {"step": EPOCH + 2, "rank": 2, "harm": "stop"},
        "2": {"step": 2 * EPOCH + 2, "rank": 1, "harm": "loop"},
    }
    run = make_run(tmp_path_factory.mktemp("hung") / "run", plans=plans)
    outputs = []
    for number in (1, 2, 3):
        with Attempt(run, number) as attempt:
            status, output = attempt.end()
            outputs.append((status, output, attempt.pids(), time.time()))
    return run, outputs


@pytest.fixture(scope="module")
def suspended(tmp_path_factory):
    """A run whose processes were all stopped for twice the limit of a hang."""
    run = make_run(tmp_path_factory.mktemp("suspended") / "run", pause_s=0.1)
    with Attempt(run) as attempt:
        wait_for(lambda: (read_progress_step(run.progress) or 0) >= EPOCH - 1, "the first steps")
        pids = [*attempt.pids().values(), attempt.process.pid]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(2 * HANG_TIMEOUT_S)  # the only effect of a suspension is that time passes
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        status, output = attempt.end()
    assert status == 0, output
    return run, output


@pytest.mark.slow
def test_a_stopped_rank_is_named_and_killed_and_the_others_leave_their_stacks(hung):
    run, [(status, output, pids, ended), *_] = hung
    assert status != 0
    error = read_json(run.attempt(1).rank_error(read_json(run.attempt(1).hang)["rank"]))
    assert (error["kind"], error["caused_by_peer"], error["traceback"]) == ("hang", False, "")
    words = f"rank 2 on {socket.gethostname()} (pid {pids[2]}) does not answer"
    assert words in error["error"] and f"(limit {HANG_TIMEOUT_S} s)" in error["error"]
    assert error["error"].endswith("stacks of ranks 0, 1 are in their logs")
    assert error["error"] in output and "trainer: rank 1: no progress for" in output
    assert output.count("_engine_run_backward") >= 2  # where the two wait for the third
    # Two steps after the first one: limit, tick and grace.
    (first_step,) = events_of(run, 2, 1, "first_step")
    assert error["time"] - first_step["t"] < HANG_TIMEOUT_S + 22
    assert ended - error["time"] < 25  # and not torchrun's 30 s
    assert all(not os.path.exists(f"/proc/{pid}") for pid in pids.values())


@pytest.mark.slow
def test_a_rank_in_a_loop_is_named_with_its_place(hung):
    run, [_, (status, output, pids, _), _] = hung
    assert status != 0
    error = read_json(run.attempt(2).rank_error(read_json(run.attempt(2).hang)["rank"]))
    assert error["kind"] == "hang"
    assert f"rank 1 on {socket.gethostname()} (pid {pids[1]}) is at " in error["error"]
    assert "misbehaving.py:" in error["error"] and "loop_for_ever" in error["error"]
    assert "stacks of ranks 0, 1, 2 are in their logs" in error["error"]
    assert "in loop_for_ever" in output


@pytest.mark.slow
def test_where_all_ranks_wait_the_one_that_is_not_in_the_collective_is_named(tmp_path):
    plan = {"step": EPOCH + 2, "rank": 1, "harm": "receive"}
    run = make_run(tmp_path / "run", plans={"1": plan})
    with Attempt(run) as attempt:
        status, output = attempt.end()
    assert status != 0
    hang = read_json(run.attempt(1).hang)
    assert hang["waited_for"] == [1], output


@pytest.mark.slow
def test_a_suspended_job_goes_on_and_a_hung_one_comes_back_with_the_same_bits(hung, suspended):
    run, [*_, (status, output, _, _)] = hung
    assert status == 0, output
    events = read_jsonl(run.timeline("rank-00000"))
    assert [e["step"] for e in events if e["event"] == "loaded"] == [0, EPOCH, 2 * EPOCH]
    undisturbed, words = suspended
    assert "no progress" not in words and not undisturbed.attempt(1).hang.exists()
    expected = read_json(undisturbed.attempt(1).outcome)
    got = read_json(run.attempt(3).outcome)
    assert got["global_step"] == expected["global_step"] == LAST_STEP
    assert got["weights_sha256"] == expected["weights_sha256"]


@pytest.mark.slow
def test_a_long_last_save_is_no_hang(tmp_path):
    """All ranks wait for the save, also those that write nothing."""
    run = make_run(tmp_path / "run", 2, plans={"1": {"step": 1, "rank": 0, "harm": "save slowly"}})
    spec = Spec.from_json(run.spec.read_text())
    only_the_last = Checkpoint(every_epochs=None, best=None)
    limit_s = 3  # far shorter than the save
    launch = dataclasses.replace(spec.launch, hang_timeout_s=limit_s)
    spec = dataclasses.replace(spec, launch=launch, checkpoint=only_the_last)
    run.spec.write_text(spec.to_json())
    with Attempt(run, num_ranks=2) as attempt:
        status, output = attempt.end()
    assert status == 0, output
    (saved,) = events_of(run, 0, 1, "save")
    assert saved["seconds"] > 2 * limit_s
    assert not run.attempt(1).hang.exists()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of a few MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    yield path
    for mounted in (path / "run" / "checkpoints", path):
        if os.path.ismount(mounted) or mounted == path:
            subprocess.run(["umount", "-l", str(mounted)], check=False, capture_output=True)


@pytest.mark.parametrize(
    ("harm", "reason", "remedy"),
    [
        pytest.param(*("fill", "No space left on device", "free space"), marks=pytest.mark.slow),
        pytest.param(
            *("read-only", "Read-only file system", "make it writable"), marks=pytest.mark.slow
        ),
        pytest.param(
            *("move", "No such file or directory", "move the run directory back"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_broken_disk_ends_the_training_with_one_line_and_the_older_checkpoint(
    small_disk, harm, reason, remedy
):
    path = small_disk / "run"
    target = {"fill": small_disk, "read-only": path / "checkpoints", "move": path}[harm]
    plan = {"step": EPOCH + 2, "rank": 0, "harm": harm, "path": str(target)}
    run = make_run(path, num_ranks=1, plans={"1": plan}, pause_s=0.5)
    run.attempt(1).path.mkdir()
    run.owner.write_text(json.dumps({"attempt": 1}))
    # Its output goes to a pipe, and not to the run directory.
    status, output = torchrun("-m", "trainer", run.path, ranks=1)
    if harm == "move":
        assert not path.exists()
        run = RunDir(path.with_name("run-moved"))
    assert status != 0
    (line,) = [line for line in output.splitlines() if "trainer: rank 0 on " in line]
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d trainer: ", line)
    assert reason in line and remedy in line and str(path) in line
    assert f"step-{2 * EPOCH:08d}" in line
    assert "Traceback" not in output.partition("trainer: rank 0 on ")[0]
    # A failed write of a small file takes far less than a step of 0.2 s.
    step = read_progress_step(run.progress)
    assert step is not None and step <= 2 * EPOCH + 1
    assert checkpoint_names(run.checkpoints) == [checkpoint_name(EPOCH)]
    reader.check(run.checkpoints / checkpoint_name(EPOCH))


@contextlib.contextmanager
def rank_alone(run):
    """The process of the only rank, without torchrun, so that a test can signal it."""
    run.attempt(1).path.mkdir()
    run.owner.write_text(json.dumps({"attempt": 1}))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    place = {"RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "WORLD_SIZE": "1"}
    place |= {"LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer", str(run.path)],
        cwd=REPOSITORY,
        env={**environment(1), **place},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def catches_stops(pid):
    """Whether a process has installed a handler of SIGTERM."""
    with open(f"/proc/{pid}/status") as status:
        (mask,) = [line.split()[1] for line in status if line.startswith("SigCgt:")]
    return int(mask, 16) >> (signal.SIGTERM - 1) & 1


def storm(process, num_signals=50, seconds=1.0):
    """Send stop signals of all kinds until the process has ended."""
    for index in range(num_signals):
        if process.poll() is None:
            process.send_signal(HANDLED_SIGNALS[index % len(HANDLED_SIGNALS)])
            time.sleep(seconds / num_signals)


def test_a_storm_from_the_first_import_on_leaves_before_the_first_step(tmp_path):
    run = make_run(tmp_path / "run", num_ranks=1)
    with rank_alone(run) as process:
        wait_for(lambda: catches_stops(process.pid), "the handlers")
        storm(process)
        output, _ = process.communicate(timeout=100)
    outcome = read_json(run.attempt(1).outcome)
    if process.returncode == EXIT_STOPPED_IN_STARTUP:  # its start took more than 10 s
        assert outcome is None and "asked to stop during start-up" in output
    else:
        assert process.returncode == 0, output
        assert (outcome["status"], outcome["global_step"]) == ("stopped", 0)
    assert "Traceback" not in output and not run.attempt(1).rank_error(0).exists()
    assert all(
        checkpoint_step(name) == 0 or name == "latest" for name in os.listdir(run.checkpoints)
    )


def test_a_storm_in_the_shutdown_leaves_a_completed_run(tmp_path):
    run = make_run(tmp_path / "run", num_ranks=1)
    with rank_alone(run) as process:
        wait_for(run.progress.exists, "the training")
        outcome = run.attempt(1).outcome
        while not outcome.exists():  # without a pause: the rank is gone some ms later
            assert process.poll() is None or outcome.exists()
        storm(process, seconds=0.0)
        output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    assert read_json(outcome)["status"] == "completed"
    assert read_json(outcome)["global_step"] == LAST_STEP
