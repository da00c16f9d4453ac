"""The node agent: torchrun's command line and environment, and the stop of the ranks."""

import errno
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from slurm_job_kit.jobs.attempt import srun_step
from slurm_job_kit.jobs.base import environment
from slurm_job_kit.jobs.base.files import read_json, read_jsonl
from slurm_job_kit.jobs.base.stop_signals import END_TORCHRUN, STOP_SIGNALS
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.rank_start import RANKS_DIR
from slurm_job_kit.jobs.contract.records.nodes import AgentRecord, AttemptPlan, Head
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Launch, Slurm, Spec
from slurm_job_kit.jobs.node import agent, interfaces, rendezvous
from slurm_job_kit.jobs.node.torchrun import Node, nproc_per_node, torchrun_command
from tests.core import run_files
from tests.core.run_files import write_json
from tests.core.waiting import wait_for

REPOSITORY = Path(__file__).resolve().parents[3]
LIMIT_S = 100  # of what takes a second on an idle machine
RUN = RunDir(Path("/runs/x y/1"))
SOCKET_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
HEAD = {"address": "127.0.0.1", "how": "a local run", "port": 15001}
PLAN_JSON = run_files.plan(attempt=2, head=HEAD)
PLAN = records.decode(AttemptPlan, PLAN_JSON, "here")
# A torchrun of two ranks: each prints when it is ready, and the signal that it received.
RANK = """
import os, signal, time
def stop(got, _):
    signal.signal(got, signal.SIG_IGN)  # the agent repeats it, perhaps while this process ends
    os._exit(print(f"received {got}", flush=True) or 0)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2): signal.signal(number, stop)
print("ready", flush=True)
time.sleep(200)  # one outlives the test that kills its torchrun
"""
TORCHRUN = """
import signal, subprocess, sys
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    assert signal.getsignal(number) is signal.SIG_IGN, number
assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])  # also of SIGCHLD, which loaders await
log = open(sys.argv[1], "a")
ranks = [subprocess.Popen([sys.executable, "-c", sys.argv[2]], stdout=log) for _ in range(2)]
sys.exit(max(rank.wait() for rank in ranks))
"""
# The agent's process; argv: run directory, signal that stops a rank, torchrun's command line.
HOST = """
import json, os, signal, sys
from pathlib import Path
from slurm_job_kit.jobs.node.torchrun import Node
from slurm_job_kit.jobs.node import agent as node_agent
from slurm_job_kit.jobs.node.agent import Agent
from slurm_job_kit.jobs.contract.records.nodes import AttemptPlan, Head
from slurm_job_kit.jobs.contract.records.timeline import Timeline
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Spec
limits = json.loads(os.environ.get("LIMITS", "[99, 99, 99]"))
node_agent.START_LIMIT_S, node_agent.END_LIMIT_S, node_agent.procfs.STILL_LIMIT_S = limits
run = RunDir(Path(sys.argv[1]))
plan = AttemptPlan(1, "7", ("a",), Head("127.0.0.1", "", 1), 0.0, None)
agent = Agent(run, 1, Node(0, plan, Spec()))
print("ready", flush=True)
stop = None if sys.argv[2] == "none" else signal.Signals[sys.argv[2]]
sys.exit(agent.run(sys.argv[3:], dict(os.environ), stop) != 0)
"""


@pytest.fixture
def node(monkeypatch):
    for name in ("SLURM_GPUS_ON_NODE", "CUDA_VISIBLE_DEVICES", *SOCKET_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    return lambda node_rank=0, spec=None: Node(node_rank, PLAN, spec or Spec())


@pytest.mark.parametrize(("node_rank", "is_host"), [(0, "true"), (1, "false")])
def test_the_command_line_of_torchrun(node, node_rank, is_host):
    spec = Spec(launch=Launch(nproc_per_node=4, args=["--x=a b"]))
    options = node(node_rank, spec).options(PLAN, "/tmp/x")
    assert torchrun_command(spec, RUN, options) == [
        *(sys.executable, "-uXfaulthandler", "-m", "slurm_job_kit.jobs.node.signed_torchrun"),
        *("--nnodes=2", "--nproc-per-node=4"),
        *("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:15001", "--rdzv-id=7-2"),
        f"--rdzv-conf=is_host={is_host},join_timeout=600,read_timeout=180",
        *("--local-addr=127.0.0.1", "--max-restarts=0", "--signals-to-handle=SIGRTMAX"),
        *("--shutdown-timeout=5", "--log-dir=/tmp/x"),
        *("-m", "--", "slurm_job_kit.trainer", "/runs/x y/1", "--x=a b"),
    ]


def test_ranks_import_a_copy_of_the_kit_on_their_node(tmp_path, capfd):
    run, here = RunDir(tmp_path / "run"), tmp_path / "here"
    (run.kit / "slurm_job_kit").mkdir(parents=True)
    (run.kit / "slurm_job_kit/__init__.py").write_text("")
    env = {"PYTHONPATH": f"{run.code}:{run.kit}"}
    own = agent.with_kit_here(run, here, env)
    command = [sys.executable, "-c", "import slurm_job_kit; print(slurm_job_kit.__file__)"]
    found = subprocess.check_output(command, cwd=tmp_path, env=own, text=True)
    assert found.strip() == str(here / "slurm_job_kit/__init__.py")
    for name in ("gone", "lost"):  # as on a node without space, each file is an error
        (run.kit / name).symlink_to("nowhere")
    here = tmp_path / "half"
    assert agent.with_kit_here(run, here, env) == env and not here.exists()
    (line,) = capfd.readouterr().err.splitlines()
    assert f"the ranks import the kit from {run.kit}: [Errno 2]" in line


def test_an_option_that_this_torch_does_not_have_is_left_out(node, tmp_path, monkeypatch):
    (tmp_path / "distributed").mkdir()
    (tmp_path / "distributed/run.py").write_text("--log-dir")  # torch 2.11
    found = ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: found)
    command = torchrun_command(Spec(), RUN, node().options(PLAN, "/tmp/x"))
    assert "--log-dir=/tmp/x" in command and "--shutdown-timeout=5" not in command


@pytest.mark.parametrize(
    ("nproc", "gpus", "environ", "expected"),
    [
        (3, 8, {"SLURM_GPUS_ON_NODE": "8"}, 3),
        ("auto", 8, {"SLURM_GPUS_ON_NODE": "2"}, 8),
        ("auto", 0, {"SLURM_GPUS_ON_NODE": "2"}, 2),
        ("auto", 0, {"CUDA_VISIBLE_DEVICES": "0,1,3"}, 3),
        ("auto", 0, {}, 1),
    ],
)
def test_auto_is_a_rank_per_gpu(nproc, gpus, environ, expected):
    spec = Spec(slurm=Slurm(gpus_per_node=gpus), launch=Launch(nproc_per_node=nproc))
    assert nproc_per_node(spec, environ) == expected


def test_ranks_get_where_they_are_and_what_the_spec_says(node, monkeypatch):
    """The run is local, so it needs no interface of the cluster."""
    for name in ("SLURM_JOB_ID", "KIT_DEADLINE", "KIT_WORK_DIR"):  # of an outer run
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    launch = Launch(threads_per_rank=3, env={"OWN": "a b"}, interface="ib0")
    spec = Spec(slurm=Slurm(gpus_per_node=2), launch=launch)
    env = node().environment(spec, RUN, replace(PLAN, deadline=1795252802.0))
    assert node().environment(spec, RUN, PLAN)["KIT_DEADLINE"] == ""  # no limit is known
    expected = {
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "=lo",  # without = it is a prefix
        "KIT_AGENT_PID": str(os.getpid()),
        "KIT_RUN_DIR": "/runs/x y/1",
        "KIT_RUN_ID": "1",
        "KIT_CHECKPOINT_DIR": "/runs/x y/1/checkpoints",
        "KIT_ATTEMPT": "2",
        "KIT_STOP_FILE": "/runs/x y/1/attempt-2/stop_requested",
        "KIT_DEADLINE": "1795252802.0",
        "KIT_HANG_TIMEOUT_S": "auto",
        "KIT_NUM_GPUS": "2",
        "KIT_WORK_DIR": "",
        "OMP_NUM_THREADS": "3",
        "PYTHONHASHSEED": "0",
        "OWN": "a b",
    }
    assert {name: env[name] for name in expected} == expected
    assert env["PATH"] == os.environ["PATH"]
    assert env["SLURM_JOB_ID"] == "1"
    monkeypatch.setenv("PYTHONHASHSEED", "7")  # by a setup line
    assert node().environment(spec, RUN, PLAN)["PYTHONHASHSEED"] == "7"


@pytest.fixture
def second_node(node, monkeypatch):
    """The node of rank 1 with eth0 and ib1, where the first node has 10.0.0.9 or fd00::9."""
    own = [("eth0", "10.0.0.2"), ("ib1", "10.1.1.2"), ("eth0", "fd00::2"), ("ib1", "fd00:1::2")]
    monkeypatch.setattr(interfaces, "addresses", lambda: own)
    monkeypatch.setattr(interfaces, "source_address", {"10.0.0.9": "10.0.0.2"}.get)

    def place(launch, head="10.0.0.9"):
        plan = replace(PLAN, head=Head(head, "", 15001))
        return Node(1, plan, Spec(launch=launch)), plan

    return place


OWN = {"GLOO_SOCKET_IFNAME": "own0"}


@pytest.mark.parametrize(
    ("launch", "head", "address", "exported", "interface"),
    [
        (Launch(), "10.0.0.9", "10.0.0.2", None, "eth0"),
        (Launch(interface="ib"), "10.0.0.9", "10.1.1.2", None, "ib1"),
        (Launch(interface="ib"), "fd00::9", "fd00:1::2", None, "ib1"),
        (Launch(), "10.0.0.9", "10.0.0.2", "ib1", "ib1"),
        (Launch(interface="eth"), "10.0.0.9", "10.0.0.2", "ib1", "eth0"),
        (Launch(interface="ib", env=OWN), "10.0.0.9", "10.1.1.2", "ib1", "own0"),
    ],
)
def test_launch_env_comes_before_the_interface_and_that_before_an_exported_variable(
    second_node, monkeypatch, launch, head, address, exported, interface
):
    if exported:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", exported)
    at, plan = second_node(launch, head)
    assert at.options(plan, "/tmp/x").local_addr == address
    env = at.environment(Spec(launch=launch), RUN, plan)
    assert env["GLOO_SOCKET_IFNAME"] == interface
    assert exported or env["NCCL_SOCKET_IFNAME"] == f"={interface}"


def test_an_agent_waits_for_its_plan_and_says_when_it_never_comes(tmp_path):
    attempt = RunDir(tmp_path).attempt(1)
    attempt.path.mkdir()
    with pytest.raises(SystemExit, match="(?s)is not there after 0.2 s.*file system that all"):
        agent.wait_for_plan(attempt, timeout_s=0.2)
    write_json(attempt.plan, PLAN_JSON)
    assert agent.wait_for_plan(attempt) == PLAN


@pytest.fixture
def refused(run):
    """What an agent prints and records that ends before torchrun."""

    def start(rank=1):
        with pytest.raises(SystemExit) as ended:
            agent.main([str(run.path), "1", f"--node-rank={rank}"])
        return str(ended.value), run.attempt(1)

    return start


def test_an_agent_that_finds_no_way_to_the_first_node_says_so(run, refused):
    run_files.opened(run, **PLAN_JSON | {"head": HEAD | {"address": "no.address.invalid"}})
    assert "route to the first node at no.address.invalid: " in refused()[0]


@pytest.mark.parametrize("no_route", [0, 1])
def test_an_agent_that_the_first_node_does_not_answer_ends_before_torchrun(
    run, refused, monkeypatch, no_route
):
    unreachable = OSError(errno.ENETUNREACH, "Network is unreachable")
    routes = mock.Mock(side_effect=[unreachable] * no_route + ["127.0.0.1"] * 9)
    monkeypatch.setattr(socket, "create_connection", mock.Mock(side_effect=TimeoutError()))
    monkeypatch.setattr(interfaces, "source_address", routes)
    for limit in ("REACH_LIMIT_S", "PAUSE_S"):
        monkeypatch.setattr(rendezvous, limit, 0.05)
    run_files.opened(run)
    printed, attempt = refused()
    assert "cannot be reached" in printed and "hint: set launch.interface" in printed
    assert "cannot be reached at 10.0.0.1:15000" in attempt.agent_error(1).read_text()


def test_an_agent_without_a_temporary_directory_records_the_reason(run, refused, monkeypatch):
    monkeypatch.setattr(environment, "temporary_folder", lambda env: str(run.path / "gone"))
    run_files.opened(run, **PLAN_JSON)
    printed, attempt = refused(0)
    assert "gone" in printed and "TMPDIR" in printed.partition("hint: ")[2]
    assert "no temporary directory for torchrun" in attempt.agent_error(0).read_text()
    broken = mock.Mock(side_effect=ValueError("a mistake of a plugin"))
    monkeypatch.setattr(environment, "temporary_folder", broken)
    assert "ValueError: a mistake of a plugin" in refused(0)[0]
    assert "ValueError: a mistake of a plugin" in attempt.agent_error(0).read_text()


def test_an_agent_without_the_interface_records_the_reason_and_ends(run, refused):
    run.spec.write_text(Spec(launch=Launch(interface="nope9")).to_json())
    run_files.opened(run, **PLAN_JSON | {"head": HEAD | {"address": "10.0.0.9"}})
    printed, attempt = refused()
    record = read_json(attempt.agent(1))
    assert record["end"] and "launch.interface: nope9 is no interface" in record["error"]
    assert f"error: {record['error']}\n  hint: " in printed


def command(*words, interpreter=(sys.executable,)):
    """An agent by its command line."""
    return [*interpreter, "-m", "slurm_job_kit.jobs.node", *map(str, words)]


@pytest.fixture
def host(tmp_path):
    """Runs an agent with a stand-in for torchrun, in a separate process."""
    run = RunDir(tmp_path)
    for folder in (run.attempt(1).path, run.timeline("x").parent):
        folder.mkdir()
    started: list[Any] = []

    def start(*command, stop="SIGTERM"):
        argv = [sys.executable, "-c", HOST, run.path, stop, *map(str, command)]
        env = os.environ | {"PYTHONPATH": str(REPOSITORY)}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(argv, env=env, text=True, **pipes))
        assert started[0].stdout.readline() == "ready\n"
        return run, started[0]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


# A torchrun that waits for ever: for its store before it has ranks, or after they have ended.
STUCK = "import subprocess, time; {}"
WAITING = "[time.sleep(0.1) for _ in iter(int, 1)]"
AFTER_RANKS = "subprocess.run(['sleep', '3']); time.sleep(1000)"


@pytest.mark.parametrize(
    ("ranks", "limits", "words"),
    [
        (WAITING, "[3, 99, 0.5]", "killed: 3 s of waiting for its ranks to start"),
        (AFTER_RANKS, "[99, 0.5, 0.5]", "killed: 0.5 s of waiting for other nodes to end"),
        ("time.sleep(1000)", "[99, 99, 0.5]", "ended: it stood still for "),
    ],
)
def test_a_torchrun_that_waits_for_a_lost_store_is_ended(host, monkeypatch, ranks, limits, words):
    monkeypatch.setenv("LIMITS", limits)
    run, process = host(sys.executable, "-X", "faulthandler", "-c", STUCK.format(ranks))
    assert process.wait(LIMIT_S) == 1
    assert f"torchrun {words}" in process.stderr.read()
    is_still = words.startswith("ended")
    exit_code = -signal.SIGABRT if is_still else -signal.SIGKILL
    assert read_json(run.attempt(1).agent(0))["torchrun_exit"] == exit_code
    log = run.attempt(1).torchrun_log(0).read_text()
    assert is_still == (", line 1 in <module>" in log) == (f"\ntorchrun {words}" in log[-80:])


@pytest.fixture
def training(host, tmp_path):
    """Starts an agent with two ranks that are ready; the last value is their log."""

    def start(**options):
        log = tmp_path / "log"
        log.touch()
        of_script = ("--", "--start-method=forkserver")
        run, process = host(sys.executable, "-c", TORCHRUN, log, RANK, *of_script, **options)
        wait_for(lambda: log.read_text().count("ready") == 2)
        return run, process, log

    return start


@pytest.mark.parametrize("stop", STOP_SIGNALS)
def test_every_stop_signal_reaches_the_ranks_as_sigterm(training, stop):
    run, process, log = training()
    process.send_signal(stop)
    assert process.wait(LIMIT_S) == 0
    assert log.read_text().count(f"received {signal.SIGTERM:d}") == 2
    assert run.attempt(1).stop_requested.exists()
    (seen,) = read_json(run.attempt(1).agent(0))["signals"]
    assert seen["signal"] == stop.name
    events = [event["event"] for event in read_jsonl(run.timeline("agent-00000"))]
    assert events == ["torchrun", "signal", "torchrun_end"]


def test_ranks_that_do_not_know_the_stop_are_left_alone(training):
    run, process, log = training(stop="none")
    process.terminate()
    wait_for(lambda: read_json(run.attempt(1).agent(0))["signals"])
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    assert "received" not in log.read_text()
    stop = run.attempt(1).stop_requested
    os.utime(stop, (1.0, 1.0))
    wait_for(lambda: stop.stat().st_mtime > 1.0)  # renewed each second: it shows the kill


def test_an_agent_that_cannot_record_says_so_once_and_still_passes_the_stop_on(training):
    run, process, log = training()
    shutil.rmtree(run.attempt(1).path)
    shutil.rmtree(run.timeline("x").parent)
    process.terminate()
    assert process.wait(LIMIT_S) == 0
    assert log.read_text().count("received") == 2
    (said,) = process.stderr.read().splitlines()
    assert "continuing without its records" in said


@pytest.mark.parametrize("file", ["attempt-1", "attempt-1/plan.json"])
def test_an_unreadable_run_directory_is_one_line(tmp_path, file):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("{}")
    argv = command(tmp_path, "1", "--node-rank=0")
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.match(r"\d{4}-\d\d-\d\d \S+ \S+: .* cannot be read", done.stderr)
    assert len(done.stderr.splitlines()) == 1


# Python imports it at its start: it sends a stop while the agent's imports run.
STOP_IN_IMPORTS = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "slurm_job_kit.jobs.node.agent":
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Finder())
"""


def pending_stop():
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    os.kill(os.getpid(), signal.SIGUSR1)


@pytest.mark.parametrize(
    ("imports", "before_exec", "name"),
    [(STOP_IN_IMPORTS, None, "SIGTERM"), ("", pending_stop, "SIGUSR1")],
    ids=["in its imports", "before it was there"],
)
def test_a_stop_that_comes_before_the_handlers_is_taken(tmp_path, imports, before_exec, name):
    run = run_files.frozen(tmp_path / "run")
    run_files.opened(run, **PLAN_JSON | {"attempt": 1, "nodes": ["a"]})
    (tmp_path / "sitecustomize.py").write_text(imports)
    env = os.environ | {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}", "SLURM_STEP_ID": "7"}
    argv = command(run.path, "1", "--node-rank=0")
    done = subprocess.run(argv, env=env, preexec_fn=before_exec, timeout=60, check=False)
    assert done.returncode == 1
    record = read_json(run.attempt(1).agent(0))
    assert [entry["signal"] for entry in record["signals"]] == [name]
    assert (record["step_id"], record["torchrun_exit"]) == ("7", -END_TORCHRUN)


def test_an_interpreter_without_torch_is_named_with_its_node(run):
    run_files.opened(run, **PLAN_JSON | {"nodes": ["a"]})
    env = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    isolated = (sys.executable, "-S")  # no packages
    argv = command(run.path, "1", "--node-rank=3", interpreter=isolated)
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    reason = f"{os.uname().nodename}: launch.python: {sys.executable} has no torch"
    assert run.attempt(1).agent_error(3).read_text() == f"{reason}\n"
    assert done.returncode == 1 and reason in done.stderr and "hint: " in done.stderr


def test_a_shielded_command_starts_with_stop_signals_held_back(tmp_path, monkeypatch):
    code = "import signal; print(*sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))"
    argv = [*srun_step.block_signals_prefix(), sys.executable, "-c", code]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert said.split() == [str(int(number)) for number in sorted(STOP_SIGNALS)]
    # An env(1) like that before coreutils 8.31, and none.
    monkeypatch.setenv("PATH", str(tmp_path))
    assert srun_step.block_signals_prefix() == []
    (tmp_path / "env").write_text("#!/bin/sh\nexit 125\n")
    (tmp_path / "env").chmod(0o755)
    assert srun_step.block_signals_prefix() == []


def test_an_agent_that_ends_records_what_its_ranks_left(host, tmp_path, monkeypatch):
    (tmp_path / "ranks" / "of torchrun").mkdir(parents=True)
    for rank in (2, 3):  # that of rank 4 ran on another node
        (tmp_path / "ranks" / str(rank)).touch()
    monkeypatch.setenv(RANKS_DIR, str(tmp_path / "ranks"))
    for rank in (3, 4):
        run_files.failed(RunDir(tmp_path).attempt(1), rank, 5.0)
    run, process = host("false")
    assert process.wait(LIMIT_S) == 1
    record = records.read(AgentRecord, run.attempt(1).agent(0))
    assert record is not None and record.ranks == (2, 3)
    assert [each.rank for each in record.errors] == [3]
