"""The reason of an end that no process recorded: from torchrun's output and the logs of ranks."""

import time
from dataclasses import replace

import pytest

from slurm_job_kit.jobs.attempt.decision import Action, Cause, Ending, History, decide
from slurm_job_kit.jobs.attempt.ending import ending_of
from slurm_job_kit.jobs.contract.known_causes import meaning
from slurm_job_kit.jobs.contract.spec import Launch, Spec
from slurm_job_kit.jobs.runs import fact_reader
from slurm_job_kit.jobs.runs.evidence import rank_evidence
from tests.core import run_files
from tests.core.run_files import write_json

# Printed by torchrun (torch 2.13).
SUMMARY = """Traceback (most recent call last):
  File "run.py", line 7, in <module>
    main()
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
slurm_job_kit.trainer FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-25_16:00:00
  host      : a.example.org
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 1233)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 1233
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-25_16:00:00
  host      : a.example.org
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 1234)
  error_file: {file}
  traceback : {trace}
============================================================
"""


@pytest.fixture
def run(run):
    run_files.opened(run)
    return run


def agents(run, *exits):
    for rank, (host, code) in enumerate(zip("ab", exits, strict=False)):
        end = code and 9.0
        run_files.node(run.attempt(1), rank, host=host, torchrun_exit=code, end=end)


def evidence(run):
    return rank_evidence(fact_reader.read(run, 1), "RUNNING")


def torchrun(run, code, trace=None):
    advice = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    file = "<N/A>" if trace is None else "/tmp/x/error.json"
    text = SUMMARY.format(code=code, file=file, trace=trace or advice)
    run.attempt(1).torchrun_log(0).write_text(text)


FRAME = 'Traceback (most recent call last):\n  File "/w/a.py", line 3, in f\n    f()\n'
MARKED = (
    "".join(f"[rank1]: {x}\n" for x in f"{FRAME}CUDA error: out of memory\ny".split("\n")) + "z"
)
ERROR = f"{FRAME}KeyError: 3\n"
BEHIND = "wandb: b\nresource_tracker\n[W1 x.c:9] y\n/a.py:9: UserWarning: u\n"
UNRAISED = f"Exception ignored in: <function X.__del__ at 0x7>\n{FRAME}TypeError: y\n"
LOGGED = "[rank1]: CUDA out of memory, smaller batch\n[rank1]: step 7\n"
UNSET = FRAME + "  File \"<frozen os>\", line 679, in __getitem__\nKeyError: 'DATA'\n"
ABORTED = 'gloo\nFatal Python error: Aborted\n\nThread 0x1:\n  File "/x.py", line 1 in f\n'


@pytest.mark.parametrize(
    ("code", "log", "words", "kind"),
    [
        (1, "epoch 1\n[rank1]: ValueError: x\n", "exited with code 1: ValueError: x", "user_code"),
        (3, "", "exited with code 3", "user_code"),
        (137, "Killed\n", "exited with code 137: Killed", "out_of_memory"),
        (-9, LOGGED, "was killed by SIGKILL; its last line: step 7", "process_killed"),
        (2, "usage: a\na: error: no\n", "exited with code 2: a: error: no", "spec_mistake"),
        (1, ERROR + BEHIND, "exited with code 1: KeyError: 3", "user_code"),
        (1, ERROR + UNRAISED * 2, "exited with code 1: KeyError: 3", "user_code"),
        (1, UNRAISED + "no data: x\n", "exited with code 1: no data: x", "user_code"),
        (1, "no shard\n 3%|# | 3/99 [3<9, 1it/s]", "exited with code 1: no shard", "user_code"),
        (1, "3%|# | 3/99 [3<9]no x\n", "exited with code 1: 3%|# | 3/99 [3<9]no x", "user_code"),
        (1, ERROR + "no data: x\n", "exited with code 1: no data: x", "user_code"),
        (1, MARKED, "exited with code 1: CUDA error: out of memory", "gpu_out_of_memory"),
        (-6, ABORTED, "was killed by SIGABRT; its last line: gloo", "process_killed"),
        (1, UNSET, f"exited with code 1: KeyError: 'DATA': {meaning(UNSET)}", "spec_mistake"),
        (1, UNSET + "bye\n", "exited with code 1: bye", "user_code"),
        (7, "error 0.3\n| step 9 |\n------\n", "exited with code 7: step 9", "user_code"),
    ],
)
def test_the_rank_that_failed_first_is_named_with_the_line_that_ended_it(
    run, code, log, words, kind
):
    agents(run, 1, 1)
    torchrun(run, code)
    run.attempt(1).rank_log(1).write_text(log)
    seen = evidence(run)
    assert (seen.error.split("\n")[0], seen.kind) == (f"rank 1 on a {words}", kind)


def test_a_command_prefix_that_begins_no_agent_is_named_with_its_last_line(run):
    run.spec.write_text(Spec(launch=Launch(command_prefix=["apptainer"])).to_json())
    run.job_log.write_text(
        "2026-01-01 00:00:00 attempt 1\nFATAL: no image x.sif\nsrun: error: n1\n"
    )
    seen = evidence(run)
    assert seen.error == "a: launch.command_prefix ended with: FATAL: no image x.sif"
    assert seen.kind == "spec_mistake"
    agents(run, 0)
    assert evidence(run).error != "a: launch.command_prefix ended with: FATAL: no image x.sif"


TRACE = """Traceback (most recent call last):
    File "/run/work/train.py", line 8, in main
      raise ValueError("boom")
  ValueError: boom
  """


def test_the_error_file_of_torchelastic_comes_before_the_log(run):
    agents(run, 1, 1)
    torchrun(run, 1, TRACE)
    run.attempt(1).rank_log(1).write_text("wandb: synced\n")
    assert evidence(run).error == "rank 1 on a exited with code 1: ValueError: boom"
    (first, peer) = fact_reader.read(run, 1).of_nodes.errors
    assert first.traceback.splitlines()[1] == '  File "/run/work/train.py", line 8, in main'
    assert peer.caused_by_peer and not first.caused_by_peer


def test_a_rank_that_lost_its_peer_is_not_the_first_failure(run):
    agents(run, 1, 1)
    torchrun(run, 1)
    run.attempt(1).rank_log(1).write_text("RuntimeError: ... Connection closed by peer [::1]\n")
    (failed, _) = fact_reader.read(run, 1).of_nodes.errors
    assert (failed.caused_by_peer, failed.kind) == (True, "collective")


def test_a_rank_that_left_with_0_before_its_peers_is_the_reason(run):
    agents(run, 1, 1)
    torchrun(run, 1)
    run.attempt(1).rank_log(0).touch()
    run.attempt(1).rank_log(1).write_text("RuntimeError: Connection closed by peer [::1]\n")
    run.attempt(1).rank_ended(0).touch()
    facts = fact_reader.read(run, 1)
    seen = rank_evidence(facts, "RUNNING")
    assert str(seen.error).startswith("rank 0 exited with code 0, and rank 1 did not: rank 1 on a")
    assert ending_of(facts, seen, 9.0).kind == "user_code"


UNSIGNED = "api.RendezvousStateError: the state is not signed by this run"
REFUSED = "the rendezvous at 10.0.0.1:15000 received data from a process outside this run"
GONE = "api.RendezvousConnectionError: The connection to the C10d store has failed."
SAVED = {"status": "stopped", "global_step": 5}
PEER = {"error": "Connection closed by peer", "kind": "collective", "caused_by_peer": True}
STOPPED = {"error": "stopped in start-up", "kind": "stopped_in_start_up"}


@pytest.mark.parametrize(
    ("last_lines", "left", "error"),
    [
        ((UNSIGNED, UNSIGNED), SAVED, REFUSED),
        ((GONE, UNSIGNED), SAVED, REFUSED),  # the store ends with the first node's torchrun
        ((f"{UNSIGNED}\n  frame #1", ""), {}, REFUSED),
        ((UNSIGNED, ""), PEER, REFUSED),  # a rank that did not stop in time was killed
        ((UNSIGNED, GONE), STOPPED, REFUSED),
        ((GONE, ""), SAVED, f"a: torchrun exit 1; b: torchrun exit 1: {GONE}"),
        ((GONE, ""), STOPPED, f"a: torchrun exit 1; b: torchrun exit 1: {GONE}"),
        ((GONE, ""), PEER, "rank 1 on n1: Connection closed by peer"),
    ],
)
def test_a_torchrun_that_fails_by_itself_has_not_been_stopped(run, last_lines, left, error):
    """It sends SIGTERM to its ranks: they save, or lose a peer, because of it."""
    agents(run, 1, 1)
    for rank, text in enumerate(last_lines):
        run.attempt(1).torchrun_log(rank).write_text(text and f"Traceback ...\n{text}\n")
    if left is SAVED:
        write_json(run.attempt(1).outcome, left)
    elif left:
        run_files.failed(run.attempt(1), 1, 8.0, **left)
    seen = evidence(run)
    assert (seen.outcome, seen.error) == (None, error)
    assert (seen.kind == "node_failure") is (error == REFUSED)
    for job_state in ("RUNNING", "LOCAL"):
        decided = decide(Ending(replace(seen, job_state=job_state)), History())
        assert (decided.action, decided.cause) == (Action.RETRY, Cause.CRASH)


def test_a_rank_that_a_killed_torchrun_left_is_no_reason_to_hold(run):
    agents(run, 1, -9)
    run.attempt(1).torchrun_log(1).write_text("ImportError: cannot import name 'reader'\n")
    seen, killed = evidence(run), "a: torchrun exit 1; b: torchrun exit -9"
    assert (seen.error, seen.would_repeat) == (killed, False)
    run.attempt(1).torchrun_log(1).write_text("torchrun ended: it stood still\n")
    assert evidence(run).error == f"{killed}: torchrun ended: it stood still"


def test_a_stop_of_which_torchrun_fails_later_is_a_stop(run):
    run_files.node(run.attempt(1), 0, (2.0, "SIGTERM"), host="a", torchrun_exit=1)
    run.attempt(1).torchrun_log(0).write_text(f"{GONE}\n")
    write_json(run.attempt(1).outcome, SAVED)
    assert evidence(run).outcome == "stopped"


def test_a_command_prefix_that_fails_on_one_node_is_no_stop_by_hand(run):
    run_files.node(run.attempt(1), 0, (8.0, "SIGTERM"), host="a", torchrun_exit=None, end=None)
    facts = fact_reader.read(run, 1)
    seen = rank_evidence(facts, "RUNNING", 255)  # of apptainer, without an image
    assert (seen.error, seen.signals) == ("a: no record (killed); b: no record (killed)", ())
    assert decide(Ending(seen), History()).cause is Cause.CRASH


def test_a_signal_in_the_second_of_the_failure_came_before_it(run):
    """torchrun prints whole seconds: a script that exits at a signal is no crash."""
    agents(run, 1, 1)
    torchrun(run, 1)
    ended = time.mktime(time.strptime("2026-11-25_16:00:00", "%Y-%m-%d_%H:%M:%S"))
    assert min(error.time for error in fact_reader.read(run, 1).of_nodes.errors) > ended + 0.9
