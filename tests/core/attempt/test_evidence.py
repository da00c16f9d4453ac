"""What the files of an attempt mean: evidence, steps, budgets, times."""

import time

import pytest

from slurm_job_kit.jobs.attempt import record_writer
from slurm_job_kit.jobs.attempt.collect_evidence import is_near_limit
from slurm_job_kit.jobs.attempt.decision import (
    COMPLETED,
    Action,
    Ending,
    History,
    decide,
    history_of,
)
from slurm_job_kit.jobs.attempt.ending import ending_of
from slurm_job_kit.jobs.base.files import append_jsonl, read_json
from slurm_job_kit.jobs.contract.kinds import Kind
from slurm_job_kit.jobs.contract.records.timeline import Timeline
from slurm_job_kit.jobs.contract.spec import Spec
from slurm_job_kit.jobs.runs import fact_reader, results
from slurm_job_kit.jobs.runs.evidence import rank_evidence
from tests.core import file_operations
from tests.core.attempt.attempt_kit import ended, entry, evidence, own_script, parsed
from tests.core.run_files import failed, node, opened, write_json

SETUP_ERROR = "b: setup: `module load x` failed with exit code 1: no module x"


@pytest.mark.parametrize(
    ("checkpoint", "first", "last", "steps"),
    [
        (None, 1, 40, (1, 40)),
        (None, 31, 40, (31, 40)),  # it may know of a checkpoint that the kit does not
        ("step-00000020", 21, 40, (21, 40)),
        ("step-00000020", 30, 40, (21, 40)),  # it reports every tenth step
        ("step-00000020", 11, 40, (11, 40)),  # it took an older one
        ("00012 checkpoints/a.pt", 30, 40, (30, 40)),
        ("step-00000020", None, 40, (None, None)),  # that step is of an earlier attempt
        (None, None, None, (None, None)),
    ],
)
def test_the_steps_of_a_script_follow_from_its_reports(run, checkpoint, first, last, steps):
    own_script(run)
    opened(run, 2, checkpoint=checkpoint)
    if first is not None:
        Timeline(run, "rank-00000", 2).event("first_step", step=first)
    if last is not None:
        run.progress.write_text(f'{{"step": {last}}}')
    facts = fact_reader.read(run, 2)
    assert results.steps_of(facts) == steps


@pytest.mark.parametrize(
    ("stop_signal", "warned", "marker", "exits", "outcome"),
    [
        ("none", False, None, (0, 0), "completed"),
        ("TERM", False, None, (0, 0), "completed"),
        ("none", True, None, (0, 0), "stopped"),  # Slurm may have signalled the script itself
        ("TERM", True, None, (0, 0), "stopped"),  # it may have more to do
        ("TERM", True, {"status": "completed"}, (0, 0), "completed"),
        ("none", True, {"status": "stopped"}, (0, 0), "stopped"),
        ("none", False, None, (0, 1), None),
        ("none", True, None, (0, 1), None),
        ("TERM", True, "odd", (1, 1), None),
    ],
)
def test_the_outcome_of_a_script_of_ones_own(run, stop_signal, warned, marker, exits, outcome):
    own_script(run, stop_signal)
    attempt = opened(run, 1)
    for rank, code in enumerate(exits):
        node(attempt, rank, *[(1.0, "SIGTERM")] * warned, torchrun_exit=code)
    if marker is not None:
        write_json(attempt.outcome, marker)
    assert evidence(run).outcome == outcome


@pytest.mark.parametrize(
    ("progress", "saved", "warned", "outcome"),
    [
        ({"step": 40, "total": 100}, None, False, None),
        ({"step": 40, "total": 100}, None, True, "stopped"),
        ({"step": 100, "total": 100}, None, False, "completed"),
        ({"step": 99, "total": 100}, 100, False, "completed"),  # a report is a second old
        ({"step": 40, "total": None}, None, False, "completed"),
    ],
)
def test_exit_0_of_a_script_is_its_end_only_if_nothing_speaks_against_it(
    run, progress, saved, warned, outcome
):
    own_script(run)
    attempt = opened(run, 2)
    for rank in (0, 1):
        node(attempt, rank, *[(1.0, "SIGTERM")] * warned)
    write_json(run.progress, progress)
    if saved is not None:
        write_json(run.saved, {"step": saved})
    Timeline(run, "rank-00000", 2).event("first_step", step=1)
    seen = evidence(run, attempt=2)
    assert seen.outcome == outcome
    if outcome is None:
        assert "exited with code 0 at step 40 of 100" in str(seen.error)
        assert decide(Ending(seen), History()).action is Action.RETRY
        assert decide(Ending(seen), History(0, 2, 2)).action is Action.HOLD


def test_a_stop_file_without_a_recorded_signal_speaks_against_exit_0(run):
    own_script(run)
    attempt = opened(run, 1, nodes=("a",))
    node(attempt, 0)
    attempt.stop_requested.touch()
    assert evidence(run).outcome == "stopped"


def test_the_trainer_that_left_no_marker_is_not_through(run):
    run.spec.write_text(Spec().to_json())
    node(opened(run, 1, nodes=("a",)), 0)
    assert evidence(run).outcome is None


# Of each agent: exit code and end of its torchrun, and the signals that it received.
@pytest.mark.parametrize(
    ("agents", "srun_exit", "signals"),
    [
        # in the order of their arrival
        ([(0, 9, (3, "SIGTERM"), (4, "SIGUSR1")), (0, 9, (2, "SIGUSR1"))], 0, "SIGUSR1 SIGTERM"),
        # a stop that follows a failure is no warning, also by a clock that is behind
        (
            [(0, 9, (8, "SIGUSR1"), (19.1, "SIGTERM")), (1, 19, (18.9, "SIGUSR2"))],
            0,
            "SIGUSR1 SIGUSR2",
        ),
        ([(0, 9, (8, "SIGTERM")), (1, 9)], 0, ""),
        # srun sends it when an agent could not begin, or was killed
        ([(1, 9, (8, "SIGTERM"))], 0, "SIGTERM"),
        ([(1, 9, (8, "SIGTERM"))], 1, ""),
        ([(1, 9, (8, "SIGTERM"))], 143, "SIGTERM"),  # an agent that died of a stop was warned
        ([(1, 9, (8, "SIGTERM")), (None, None)], 0, ""),
        ([(None, None, (8, "SIGTERM"))], 0, "SIGTERM"),  # an agent without an end did not fail
    ],
)
def test_signals_are_warnings_unless_they_follow_a_failure(run, agents, srun_exit, signals):
    attempt = opened(run, 1)
    for rank, (code, end, *received) in enumerate(agents):
        node(attempt, rank, *received, torchrun_exit=code, end=end)
    assert evidence(run, srun_exit).signals == tuple(signals.split())
    failed(attempt, 1, 1.0)
    assert evidence(run, srun_exit).signals == ()


def test_a_line_that_a_late_write_has_spoilt_is_passed_over(run):
    opened(run, 1)
    good = {"t": 8.5, "event": "first_step", "attempt": 1}
    spoilt = b'{"t": 8.1, "event": "init", "attem{"t": 8.2, "ev\n[1]\n\xff\n'
    run.timeline("rank-00000").write_bytes(spoilt)
    append_jsonl(run.timeline("rank-00000"), good)
    assert fact_reader.read(run, 1).first_event("first_step") is not None
    assert fact_reader.read(run, 1).of_nodes.gone == ()


def test_an_attempt_knows_when_its_allocation_is_too_short_for_another(run):
    run.spec.write_text(Spec().to_json())  # a warning 120 s before the limit
    now = time.time()
    for left_s, is_near in ((None, False), (200.0, True), (300.0, False)):
        opened(run, 1, deadline=left_s and now + left_s)
        assert is_near_limit(fact_reader.read(run, 1), now) is is_near


HANG = {"kind": "hang", "error": "no step in 60 s"}
BAD_NODE = {"kind": "bad_node", "error": "preflight: 2 is not 3"}


@pytest.mark.parametrize(
    ("agents", "ranks", "not_started", "error"),
    [
        ({}, {}, {}, None),
        ({0: -9}, {}, {}, "n0: torchrun exit -9; b: no record (killed)"),
        ({0: -9}, {1: {}}, {}, "rank 1 on n1: ValueError: x"),
        ({0: 1, 1: None}, {}, {}, "n0: torchrun exit 1"),  # b: ended by srun
        ({0: None, 1: None}, {}, {}, "a: no record (killed); b: no record (killed)"),
        ({0: 1}, {}, {1: SETUP_ERROR}, SETUP_ERROR),
        ({}, {}, {0: "", 3: "n3: x", 1: "n1: x"}, "n1: x; 1 other node failed as well"),
        ({}, {0: {}, 1: HANG, 2: {"caused_by_peer": True}}, {}, "rank 1 on n1: no step in 60 s"),
        ({}, {0: {}, 1: BAD_NODE, 2: BAD_NODE}, {}, "rank 1 on n1: preflight: 2 is not 3"),
    ],
)
def test_evidence_names_the_rank_at_fault_or_the_nodes_that_ended(
    run, agents, ranks, not_started, error
):
    attempt = opened(run, 1) if error else run.attempt(1)
    for rank, code in agents.items():
        node(attempt, rank, torchrun_exit=code, end=code and 9.0)
    for rank, fields in ranks.items():
        failed(attempt, rank, 5.0 + rank, **{"host": f"n{min(rank, 1)}"} | fields)
    for rank, text in not_started.items():  # an empty one is of a full disk
        attempt.agent_error(rank).write_text(text and f"{text}\n")
    seen = evidence(run)
    assert (seen.error, seen.outcome, seen.has_progress) == (error, None, False)
    assert seen.kind == next((x["kind"] for x in ranks.values() if x.get("kind")), seen.kind)


def test_of_several_failing_ranks_of_a_script_the_first_is_the_reason(run):
    own_script(run)
    attempt = opened(run, 1)
    failed(attempt, 0, 5.0, error="was killed by SIGTERM", caused_by_peer=True, exit_code=-15)
    failed(attempt, 1, 6.2, error="ValueError: later", exit_code=1, traceback="x")
    failed(attempt, 2, 6.1, error="exited with code 3", exit_code=3)
    facts = fact_reader.read(run, 1)
    assert rank_evidence(facts, "RUNNING").error == "rank 2 on n2 exited with code 3"
    assert [each.rank for each in ended(run).further] == [1]


@pytest.mark.parametrize("srun_exit", [1, 128 + 9, 128 + 15])
def test_the_end_of_the_other_nodes_after_a_failed_setup_is_no_warning(run, srun_exit):
    """srun sends SIGTERM to the agents, and to the shells in which setup still runs."""
    attempt = opened(run, 1, nodes=("a", "b", "c"))
    attempt.agent_error(1).write_text(f"{SETUP_ERROR}\n")
    node(attempt, 0, (8.0, "SIGTERM"), torchrun_exit=1)
    assert evidence(run, srun_exit).signals == ()


@pytest.mark.parametrize(
    ("before", "after", "has_progress"),
    [
        (None, None, False),
        (None, "step-00000005", True),
        ("step-00000005", "step-00000005", False),
        ("step-00000005", "step-00000010", True),
        ("step-00000010", "step-00000005", False),  # the newer one was damaged and quarantined
        ("step-99999999", "step-100000000", True),
    ],
)
def test_progress_is_a_newer_checkpoint(run, before, after, has_progress):
    opened(run, 1, checkpoint=before)
    if after is not None:
        (run.checkpoints / after).mkdir()
    assert evidence(run).has_progress is has_progress


@pytest.mark.parametrize(
    ("attempts", "counted"),
    [
        ([], History(0, 0, 0)),
        ([entry(), entry()], History(0, 2, 2)),
        ([entry(), entry(progress=True)], History(0, 1, 0)),
        ([entry(cause="hang"), entry()], History(0, 2, 2)),
        ([entry(progress=True), entry()], History(0, 2, 1)),
        ([entry(), entry("requeue", "preemption")], History(1, 1, 1)),
        ([entry(), entry("requeue", "preemption", progress=True)], History(1, 0, 0)),
        ([entry("wait", "requeued"), entry("requeue", "preemption")], History(2, 0, 1)),
        ([entry("retry", "lost")], History(1, 0, 1)),
        ([entry(cause="out_of_memory"), entry(cause="node")], History(1, 1, 2)),
        ([entry("successor", "preemption")], History(1, 0, 0)),
        ([entry(), entry("requeue", "manual_stop")], History(1, 1, 1)),
        ([entry("requeue", "time_limit")] * 2, History(2, 0, 2)),
        ([entry("requeue", "time_limit"), entry()], History(1, 1, 2)),
        ([entry(), entry("hold"), entry()], History(0, 1, 1)),
        ([entry(), entry("cancel", "cancelled")], History(0, 0, 0)),
    ],
)
def test_budgets_are_counted_since_the_last_progress_and_anew_after_a_hold(attempts, counted):
    assert history_of(parsed(attempts)) == counted


def test_crashes_of_the_last_24_hours_count():
    crashes = parsed([entry(stop=1000.0), entry(stop=50_000.0), entry(stop=90_000.0)])
    counted = [history_of(crashes, now).crashes for now in (87_000.0, 90_001.0, 180_000.0)]
    assert counted == [3, 2, 0]


@pytest.mark.parametrize(("step", "steps"), [(15, (11, 15)), (10, (None, None))])
def test_an_attempt_did_the_steps_between_its_checkpoint_and_its_progress(run, step, steps):
    Timeline(run, "rank-00000", 1).event("loaded", step=10)
    run.progress.write_text(f'{{"step": {step}}}')
    assert results.steps_of(fact_reader.read(run, 1)) == steps
    assert results.steps_of(fact_reader.read(run, 2)) == (None, None)


def test_a_stop_lasts_from_the_first_warning_of_a_node(run):
    attempt = opened(run, 1)
    node(attempt, 0, (time.time() - 4, "SIGTERM"), (time.time() - 3, "SIGUSR1"))
    node(attempt, 1, (time.time() - 5, "SIGTERM"))
    assert ended(run).stop_s == pytest.approx(5, abs=1)
    assert ended(run, 3).stop_s is None


@pytest.mark.parametrize(("job_state", "is_known"), [("LOST", False), ("RUNNING", True)])
def test_how_long_a_lost_attempt_took_to_stop_is_unknown(run, job_state, is_known):
    node(opened(run, 1), 0, (time.time() - 4000, "SIGTERM"))  # its job waited in the queue
    facts = fact_reader.read(run, 1)
    seen = rank_evidence(facts, job_state)
    record = record_writer.record_of(facts, ending_of(facts, seen, 0.0), COMPLETED, 0.0)
    assert seen.signals and (record.times.stop_s is not None) is is_known


KILLED_ON_N1 = {"rank": 1, "host": "n1", "exit_code": -9, "caused_by_peer": False}


def test_a_kill_for_memory_is_named_by_its_node_its_rank_and_its_limit(run):
    attempt = opened(run, 1)
    node(attempt, 0, torchrun_exit=1)
    node(attempt, 1, torchrun_exit=1)
    write_json(attempt.agent(1), read_json(attempt.agent(1)) | {"oom_kill": 1})
    failed(attempt, 0, 5.0, caused_by_peer=True)
    seen = evidence(run)
    assert seen.kind is Kind.OUT_OF_MEMORY
    assert seen.error == "n1: the kernel killed a process for want of memory"
    write_json(attempt.agent(1), read_json(attempt.agent(1)) | {"memory_limit_mib": 600})
    write_json(attempt.rank_error(1), read_json(attempt.rank_error(0)) | KILLED_ON_N1)
    seen = evidence(run)
    killed, limit = str(seen.error).split(": the job ")
    assert killed == "n1: the kernel killed rank 1 for want of memory"
    assert limit == "may use 600 MiB of the node (slurm.mem)"


def test_a_close_opens_files_of_ranks_only_where_their_agent_recorded_no_end(run):
    attempt = opened(run, 2, nodes=["n0", "n1", "n2"])
    for number in (1, 2):
        for rank in range(6):
            Timeline(run, f"rank-{rank:05d}", number).event("spawn", host=f"n{rank // 2}")
    for rank in (0, 1, 5):
        failed(attempt, rank, 5.0, caused_by_peer=True)
    errors = [read_json(attempt.rank_error(rank)) for rank in (0, 1)]
    node(attempt, 0, torchrun_exit=1, ranks=[0, 1], errors=errors)
    node(attempt, 1, torchrun_exit=1, ranks=[2, 3])  # both were killed
    node(attempt, 2, torchrun_exit=None, end=None)
    with file_operations.watched(run.path) as operations:
        facts = fact_reader.read(run, 2)
    error = str(rank_evidence(facts, "RUNNING").error)
    assert error.startswith("rank 2 on n1, rank 3 on n1, rank 4 on n2 died without an error record")
    paths = sorted(path for name, path in operations.elements() if name == "open")
    assert len([path for path in paths if "agent" in path]) == 3
    timelines = [f"timeline/rank-{rank:05d}.jsonl" for rank in (0, 4, 5)]  # rank 0: the steps
    of_ranks = ["attempt-2/rank-00005.error.json", *timelines]
    assert [path for path in paths if "/rank-" in path] == of_ranks
