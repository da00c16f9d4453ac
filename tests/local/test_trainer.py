"""The trainer under a real torchrun: its end, failures, and stops of one rank."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest

from slurm_job_kit.jobs import hooks
from slurm_job_kit.jobs.base import procfs
from slurm_job_kit.jobs.base.environment import Program
from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Launch, Log, Spec, Train
from slurm_job_kit.jobs.node.torchrun import NodeOptions, torchrun_command, variables_of_spec
from tests.core.run_files import REPOSITORY, read_progress_steps
from tests.parts import TABLE

TINY = {
    "dataset": "tests.local.test_trainer_plugins:table",
    "model": "tests.local.test_trainer_plugins:Troubled",
    "objective": "classification",
    "epochs": 4,
    "micro_batch_size": 4,
}


def make_run(path, launch=None, **train):
    run = RunDir(path)
    for folder in (run.attempt(1).path, run.checkpoints, run.timeline("x").parent):
        folder.mkdir(parents=True)
    run.attempt(1).rendezvous_key.write_bytes(b"k")
    spec = Spec(
        launch=Launch(stop_check_steps=1, **(launch or {})),
        train=Train(**train),
        log=Log(every_steps=3),
    )
    run.spec.write_text(spec.to_json())
    return run


def environment(attempt):
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("KIT_", "SLURM_"))}
    extra = {} if attempt is None else {"KIT_ATTEMPT": str(attempt)}
    # A rank that gets SIGABRT prints the stacks of its threads.
    fixed = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    return inherited | fixed | extra


def start(command, env):
    return subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(process, limit_s=100, logs=None):
    """(exit status, output and rank logs in the folder `logs`) of a torchrun.

    At its limit the stacks of its ranks are printed, and it is ended.
    """
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        for rank in descendants(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGABRT)
        # The ranks have their own sessions: let torchrun end them.
        process.terminate()
        output, _ = process.communicate(timeout=60)
        pytest.fail(f"torchrun took more than {limit_s} s:\n{output}{texts(logs)}")
    return process.returncode, output + texts(logs)


def descendants(pid):
    """The processes that a process has started, and those that they have."""
    found, newest = [], [pid]
    while newest := procfs.children(*newest):
        found += newest
    return found


def texts(logs):
    """The logs of ranks in a folder, each below its name."""
    paths = sorted(logs.glob("rank-*.log")) if logs else []
    return "".join(f"{path.name}:\n{path.read_text()}" for path in paths)


def train(run, **variables):
    """(exit status, all output) of three ranks, which torchrun starts as the node's agent does."""
    run.owner.write_text(json.dumps({"attempt": 1}))
    spec = Spec.from_json(run.spec.read_text())
    address, logs = "127.0.0.1", tempfile.gettempdir()
    node = NodeOptions(1, 3, f"{address}:0", "test", True, address, logs)
    env = environment(1) | variables_of_spec(spec)
    env |= {"KIT_AGENT_PID": str(os.getpid()), "KIT_RUN_DIR": str(run.path)}
    env["KIT_RANKS_DIR"] = str(run.attempt(1).path)
    command = torchrun_command(spec, run, node)
    command, env = hooks.launch_command(Program.TORCHRUN, command, env, spec)
    return end(start(command, env | variables), logs=run.attempt(1).path)


# Creates a file with the name of the rank that opens spec.json.
NOTE_READERS = """
import os, sys

def note(event, arguments):
    if event == "open" and str(arguments[0]).endswith("/spec.json") and "RANK" in os.environ:
        os.close(os.open(os.path.join(os.environ["READERS"], os.environ["RANK"]), os.O_CREAT))

sys.addaudithook(note)
"""


def test_the_first_rank_alone_reads_the_spec_and_no_rank_tears_the_interpreter_down(tmp_path):
    """A tear-down may hang: the process group's destructor waits for threads that need the GIL."""
    run, site, readers = make_run(tmp_path / "run", **TINY), tmp_path / "site", tmp_path / "readers"
    site.mkdir()
    readers.mkdir()
    (site / "sitecustomize.py").write_text(NOTE_READERS)
    status, output = train(run, PYTHONPATH=f"{site}:{REPOSITORY}", READERS=str(readers))
    assert status == 0, output
    assert [each.name for each in readers.iterdir()] == ["0"]
    assert "completed at step 20" in output and "torn down" not in output


def test_a_raising_rank_ends_all_ranks_and_is_named(tmp_path):
    run = make_run(tmp_path, **TINY, model_args={"raise_at": 3})
    status, output = train(run)
    ended = time.time()
    assert status != 0
    assert "ValueError: a planted error" in output
    error = read_json(run.attempt(1).rank_error(1))
    assert ended - error["time"] < 25  # and not torchrun's 30 s
    assert (error["rank"], error["host"]) == (1, socket.gethostname())
    assert "a planted error" in error["error"] and "raise ValueError" in error["traceback"]
    assert error["caused_by_peer"] is False
    for rank in (0, 2):
        other = read_json(run.attempt(1).rank_error(rank))
        assert other is None or other["caused_by_peer"] is True
    assert not run.attempt(1).outcome.exists()


@pytest.mark.slow
@pytest.mark.plugin("describe")
def test_a_run_tells_its_batches_and_starts_by_hand(tmp_path):
    train = TABLE | {"dataset": "tests.local.test_trainer_plugins:table_by_name"}
    run = make_run(tmp_path, **train, micro_batch_size=8, epochs=1)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node=2", "-m", "trainer", str(run.path)]
    status, output = end(start(command, environment(None) | {"PYTHONHASHSEED": "random"}))
    assert status == 0, output
    assert output.count("hash() is random: False") == 2
    assert "455 training samples, 114 held out" in output
    words = "448 samples an epoch, 7 dropped"
    assert words in output
    result = read_json(run.result)
    assert (result["status"], result["global_step"]) == ("completed", 28)
    assert read_progress_steps(run.progress)[0] == 28
