"""The reason of an end that no process recorded: from the logs of ranks, torchrun and the job."""

import subprocess
import sys

import pytest

from slurm_job_kit.jobs.attempt.decision import BudgetUsed, Cause, decide
from slurm_job_kit.jobs.rundir import write_json
from slurm_job_kit.jobs.runs import fact_reader, interpret
from slurm_job_kit.jobs.spec import Launch, Spec
from tests.unit import run_files

# Printed by torchrun (torch 2.13).
SUMMARY = """Traceback (most recent call last):
  File "run.py", line 7, in <module>
    main()
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
slurm_job_kit.trainer FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-25_16:00:00
  host      : a.example.org
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 1234)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
OPENED = "2026-11-25 16:00:00 attempt 1: 2 nodes, rendezvous at 10.0.0.1:29500\n"
STEP_ENDS = """srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
slurmstepd: error: *** STEP 7.0 ON a CANCELLED AT 2026-11-25T16:00:01 ***
srun: error: b: task 1: Exited with exit code 1
"""


@pytest.fixture
def run(run):
    """A run whose attempt 1 is open."""
    run_files.opened(run)
    return run


def agents(run, *exits):
    for rank, (host, code) in enumerate(zip("ab", exits, strict=False)):
        end = code and 9.0
        run_files.node(run.attempt(1), rank, host=host, torchrun_exit=code, end=end)


def evidence(run):
    return interpret.rank_evidence(fact_reader.read(run, 1), "RUNNING")


def reason(run):
    return evidence(run).error


@pytest.mark.parametrize(
    ("code", "log", "words"),
    [
        ("-9", "step 7/10 loss 2\n", "was killed by SIGKILL"),
        (
            "-6",
            "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error\n",
            "was killed by SIGABRT: terminate called after throwing an instance of 'c10::Error'\n"
            "  what():  CUDA error",
        ),
        ("-4", "", "was killed by SIGILL"),
    ],
)
def test_a_rank_that_a_signal_ended_is_named_with_its_last_error(run, code, log, words):
    agents(run, 1, 1)
    run.attempt(1).torchrun_log(0).write_text(SUMMARY.format(code=code))
    run.attempt(1).rank_log(1).write_text(log)
    assert reason(run).startswith(f"rank 1 on a {words}")


def test_a_torchrun_that_fails_by_itself_is_named_with_its_error(run):
    agents(run, 1, -9)
    code = "def meet():\n    raise TimeoutError('no answer\\nfrom the store')\nmeet()"
    with open(run.attempt(1).torchrun_log(0), "wb") as log:
        subprocess.run([sys.executable, "-c", code], stderr=log, check=False)
    first, second = reason(run).split("; ")
    assert first == "a: torchrun exit 1"
    assert second == "b: torchrun exit -9: TimeoutError: no answer\nfrom the store"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "srun: error: Task launch for StepId=7.0 failed on node b: Communication connection "
            "failure\n",
            None,
        ),
        ("slurmstepd: error: execve(): bash: No such file or directory\n", None),
        ("slurmstepd-b: error: Detected 1 oom_kill event in StepId=7.0. Some of the ...\n", None),
        ("FATAL:   could not open image /images/torch.sif: no such file or directory\n", None),
    ],
)
def test_an_agent_without_a_record_is_named_with_the_error_in_the_jobs_log(run, line, words):
    before = "slurmstepd: error: of an earlier attempt\n"
    run.job_log.write_text(before + OPENED + line + STEP_ENDS)
    text = reason(run)
    assert line.strip() in text and "STEP" not in text and "earlier" not in text
    assert words is None or "shared library" in text


@pytest.mark.parametrize("begun", [None, -15])
def test_a_command_prefix_that_fails_on_one_node_is_no_stop_by_hand(run, begun):
    run.spec.write_text(Spec(launch=Launch(command_prefix=["apptainer", "exec", "x"])).to_json())
    stop, end = (8.0, "SIGTERM"), begun and 9.0
    run_files.node(run.attempt(1), 0, stop, host="a", torchrun_exit=begun, end=end)
    line = "FATAL:   could not open image /images/torch.sif: no such file or directory"
    ended = STEP_ENDS.replace("exit code 1", "exit code 255")
    run.job_log.write_text(f"{OPENED}2026-11-25 16:00:01 attempt 1, a: torchrun\n{line}\n{ended}")
    facts = fact_reader.read(run, 1)
    seen = interpret.rank_evidence(facts, "RUNNING", 143)
    assert seen.error == f"b: launch.command_prefix failed with exit code 255: {line}"
    assert (seen.signals, interpret.stop_signals_at_start(facts, 143)) == ((), ())
    assert decide(seen, BudgetUsed(0, 0, 0)).cause is Cause.CRASH


def test_a_command_prefix_that_fails_on_many_nodes_is_named_by_each_of_them(run):
    nodes = ["n1", "n2", "n3", "x"]
    write_json(run.attempt(1).plan, run_files.plan(nodes=nodes))
    run.spec.write_text(Spec(launch=Launch(command_prefix=["apptainer"])).to_json())
    line = "srun: error: n[1-3]: tasks 0-2: Exited with exit code 127"
    run.job_log.write_text(f"{OPENED}apptainer: command not found\n{line}\n")
    seen = interpret.rank_evidence(fact_reader.read(run, 1), "RUNNING", 127)
    assert str(seen.error).startswith("n1, n2, n3: launch.command_prefix failed with exit code 127")
