"""What the files of an attempt mean: evidence, steps, budgets, times."""

import time

import pytest

from slurm_job_kit.jobs.attempt import record_writer
from slurm_job_kit.jobs.attempt.decision import (
    COMPLETED,
    Action,
    BudgetUsed,
    Cause,
    Decision,
    budget_used,
    decide,
)
from slurm_job_kit.jobs.kinds import Kind
from slurm_job_kit.jobs.rundir import Timeline, append_jsonl, read_json, write_json
from slurm_job_kit.jobs.runs import fact_reader, interpret
from slurm_job_kit.jobs.spec import Spec
from tests.core import file_operations, run_files
from tests.core.attempt.attempt_kit import entry, own_script, parsed
from tests.core.run_files import failed, node, opened

SETUP_ERROR = "n2: setup: `module load x` failed with exit code 1: no module x"


def agent_failed(attempt_dir, rank, text=SETUP_ERROR):
    attempt_dir.agent_error(rank).write_text(f"{text}\n")


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
    assert interpret.steps_of(facts) == steps


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
        ("USR1", True, None, (1, 1), None),
        ("TERM", True, {"status": ["odd"]}, (0, 0), "stopped"),
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
    assert interpret.rank_evidence(fact_reader.read(run, 1), "RUNNING").outcome == outcome


@pytest.mark.parametrize(
    ("progress", "saved", "is_reported_now", "warned", "outcome"),
    [
        ({"step": 40, "total": 100}, None, True, False, None),
        ({"total": 100, "step": 40}, None, True, False, None),
        ({"step": 40, "total": 100}, None, True, True, "stopped"),
        ({"step": 100, "total": 100}, None, True, False, "completed"),
        ({"step": 100, "total": 100}, None, True, True, "stopped"),
        ({"step": 99, "total": 100}, 100, True, False, "completed"),  # a report is a second old
        ({"step": 40, "total": None}, None, True, False, "completed"),
        ({"step": 40, "total": None}, None, True, True, "stopped"),
    ],
)
def test_exit_0_of_a_script_is_its_end_only_if_nothing_speaks_against_it(
    run, progress, saved, is_reported_now, warned, outcome
):
    own_script(run)
    attempt = opened(run, 2)
    for rank in (0, 1):
        node(attempt, rank, *[(1.0, "SIGTERM")] * warned)
    write_json(run.progress, progress)
    if saved is not None:
        write_json(run.saved, {"step": saved})
    Timeline(run, "rank-00000", 2 if is_reported_now else 1).event("first_step", step=1)
    seen = interpret.rank_evidence(fact_reader.read(run, 2), "RUNNING")
    assert seen.outcome == outcome
    if outcome is None:
        assert "exited with code 0 after step 40 of 100" in str(seen.error)
        assert decide(seen, BudgetUsed(0, 0, 0)).action is Action.RETRY
        assert decide(seen, BudgetUsed(0, 2, 2)).action is Action.HOLD


def test_a_stop_file_without_a_recorded_signal_speaks_against_exit_0(run):
    own_script(run)
    attempt = opened(run, 1, nodes=("a",))
    node(attempt, 0)
    attempt.stop_requested.touch()
    assert interpret.rank_evidence(fact_reader.read(run, 1), "RUNNING").outcome == "stopped"


def test_the_trainer_that_left_no_marker_is_not_through(run):
    run.spec.write_text(Spec().to_json())
    node(opened(run, 1, nodes=("a",)), 0)
    assert interpret.rank_evidence(fact_reader.read(run, 1), "RUNNING").outcome is None


def test_a_hang_is_the_cause_of_its_peers_errors(run):
    attempt = opened(run, 1)
    failed(attempt, 0, 5.0)
    failed(attempt, 1, 5.2, kind="hang", error="no step in 60 s")
    failed(attempt, 2, 5.1, kind="unknown", caused_by_peer=True)
    seen = interpret.rank_evidence(fact_reader.read(run, 1), "RUNNING")
    assert (seen.kind, seen.error) == (Kind.HANG, "rank 1 on n1: no step in 60 s")


@pytest.mark.parametrize(
    ("times", "lost_peer", "first"),
    [((5.2, 5.1, 5.3), (), 1), ((5.0, 5.1), (0,), 1), ((5.0,), (0,), 0), ((), (), None)],
)
def test_the_rank_that_failed_first_is_the_cause_unless_it_lost_its_peer(
    run, times, lost_peer, first
):
    attempt = opened(run, 1)
    for rank, moment in enumerate(times):
        failed(attempt, rank, moment, caused_by_peer=rank in lost_peer)
    found = interpret.first_error(fact_reader.read(run, 1).of_nodes.errors)
    assert first == (found and found.rank)


def test_evidence_has_the_signals_in_the_order_of_their_arrival(run):
    attempt = opened(run, 1)
    node(attempt, 0, (3.0, "SIGTERM"), (4.0, "SIGUSR1"))
    node(attempt, 1, (2.0, "SIGUSR1"))
    assert interpret.rank_evidence(fact_reader.read(run, 1), "RUNNING").signals == (
        "SIGUSR1",
        "SIGTERM",
    )


def test_a_stop_that_follows_a_failure_is_no_warning(run):
    attempt = opened(run, 1)
    node(attempt, 0, (8.0, "SIGUSR1"), (19.1, "SIGTERM"))
    node(attempt, 1, (18.9, "SIGUSR2"), torchrun_exit=1, end=19.0)
    assert interpret.rank_evidence(fact_reader.read(run, 1), "RUNNING").signals == (
        "SIGUSR1",
        "SIGUSR2",
    )
    failed(attempt, 1, 7.0)
    assert interpret.rank_evidence(fact_reader.read(run, 1), "RUNNING").signals == ()


@pytest.mark.parametrize(
    ("srun_exit", "signals"), [(0, ("SIGTERM",)), (1, ()), (143, ("SIGTERM",))]
)
def test_what_srun_sends_when_an_agent_could_not_begin_is_no_warning(run, srun_exit, signals):
    """Nor if an agent was killed; but an agent that died of a stop signal counts as warned."""
    attempt = opened(run, 1)
    node(attempt, 0, (8.0, "SIGTERM"), torchrun_exit=1, end=9.0)
    assert (
        interpret.rank_evidence(fact_reader.read(run, 1), "RUNNING", srun_exit).signals == signals
    )
    node(attempt, 1, torchrun_exit=None, end=None)
    assert interpret.rank_evidence(fact_reader.read(run, 1), "RUNNING").signals == ()


def test_a_clock_that_is_behind_makes_no_warning_of_what_follows_a_failure(run):
    attempt = opened(run, 1)
    node(attempt, 0, (8.0, "SIGTERM"))  # by a clock that is more than a second behind
    node(attempt, 1, torchrun_exit=1, end=9.0)
    assert interpret.rank_evidence(fact_reader.read(run, 1), "RUNNING").signals == ()


def test_a_line_that_a_late_write_has_spoilt_is_passed_over(run):
    opened(run, 1)
    good = {"t": 8.5, "event": "first_step", "attempt": 1}
    spoilt = b'{"t": 8.1, "event": "init", "attem{"t": 8.2, "ev\n[1]\n\xff\n'
    run.timeline("rank-00000").write_bytes(spoilt)
    append_jsonl(run.timeline("rank-00000"), good)
    assert interpret.times_of(fact_reader.read(run, 1), False, time.time())[1] == 7.5
    assert interpret.ranks_without_record(fact_reader.read(run, 1)) is None


def test_an_attempt_knows_when_its_allocation_is_too_short_for_another(run):
    run.spec.write_text(Spec().to_json())  # a warning 120 s before the limit
    for attempt, left_s in ((1, None), (2, 200.0), (3, 300.0)):
        opened(run, attempt)
        deadline = None if left_s is None else time.time() + left_s
        write_json(run.attempt(attempt).plan, run_files.plan(deadline=deadline))
    assert [
        interpret.is_near_limit(fact_reader.read(run, attempt), time.time())
        for attempt in (1, 2, 3)
    ] == [False, True, False]


def test_an_agent_that_wrote_no_end_is_no_failure(run):
    node(opened(run, 1), 0, (8.0, "SIGTERM"), torchrun_exit=None, end=None)
    assert interpret.rank_evidence(fact_reader.read(run, 1), "RUNNING").signals == ("SIGTERM",)


def test_evidence_names_the_failing_rank_or_the_nodes_that_ended(run):
    attempt = opened(run, 1)
    node(attempt, 0, torchrun_exit=-9)
    ended, silent = str(interpret.rank_evidence(fact_reader.read(run, 1), "RUNNING").error).split(
        "; "
    )
    assert ended == "n0: torchrun exit -9"
    assert silent == "b: no record (killed)"
    failed(attempt, 1, 5.0)
    assert (
        interpret.rank_evidence(fact_reader.read(run, 1), "RUNNING").error
        == "rank 1 on n1: ValueError: x"
    )


def test_an_agent_without_an_end_is_not_named_beside_the_torchrun_that_failed(run):
    attempt = opened(run, 1)
    node(attempt, 0, torchrun_exit=1)
    node(attempt, 1, torchrun_exit=None, end=None)
    assert interpret.rank_evidence(fact_reader.read(run, 1), "LOST").error == "n0: torchrun exit 1"
    node(attempt, 0, torchrun_exit=None, end=None)
    error = "a: no record (killed); b: no record (killed)"
    assert interpret.rank_evidence(fact_reader.read(run, 1), "LOST").error == error


def test_of_several_failing_ranks_of_a_script_the_first_is_the_reason(run):
    own_script(run)
    attempt = opened(run, 1)
    failed(attempt, 0, 5.0, error="was killed by SIGTERM", caused_by_peer=True, exit_code=-15)
    failed(attempt, 1, 6.2, error="ValueError: later", exit_code=1, traceback="x")
    failed(attempt, 2, 6.1, error="exited with code 3", exit_code=3)
    facts = fact_reader.read(run, 1)
    assert interpret.rank_evidence(facts, "RUNNING").error == "rank 2 on n2 exited with code 3"
    assert [each.rank for each in interpret.further_errors(facts.of_nodes.errors)] == [1]


def test_a_node_whose_agent_did_not_start_is_the_reason_and_a_crash(run):
    attempt = opened(run, 1)
    node(attempt, 0, torchrun_exit=1)
    agent_failed(attempt, 1)
    seen = interpret.rank_evidence(fact_reader.read(run, 1), "RUNNING", srun_exit=1)
    assert decide(seen, BudgetUsed(0, 0, 0)) == Decision(Action.RETRY, Cause.CRASH, SETUP_ERROR)


def test_of_many_nodes_whose_agents_did_not_start_the_first_is_named(run):
    attempt = opened(run, 1, nodes=("a", "b", "c", "d"))
    for rank in (3, 1, 2):
        agent_failed(attempt, rank, f"n{rank}: x")
    attempt.agent_error(0).touch()  # a full disk
    error = interpret.rank_evidence(fact_reader.read(run, 1), "RUNNING").error
    assert error == "n1: x; 2 other nodes failed as well"


@pytest.mark.parametrize("srun_exit", [1, 128 + 9, 128 + 15])
def test_the_end_of_the_other_nodes_after_a_failed_setup_is_no_warning(run, srun_exit):
    """srun sends SIGTERM to the agents, and to the shells in which setup still runs."""
    attempt = opened(run, 1, nodes=("a", "b", "c"))
    agent_failed(attempt, 1)
    assert interpret.stop_signals_at_start(fact_reader.read(run, 1), srun_exit) == ()
    node(attempt, 0, (8.0, "SIGTERM"), torchrun_exit=1)
    facts = fact_reader.read(run, 1)
    assert interpret.rank_evidence(facts, "RUNNING", srun_exit).signals == ()
    assert interpret.stop_signals_at_start(facts, srun_exit) == ()


def test_evidence_of_nothing_is_no_error(run):
    seen = interpret.rank_evidence(fact_reader.read(run, 1), "RUNNING")
    assert (seen.outcome, seen.signals, seen.has_progress, seen.error) == (None, (), False, None)


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
    assert interpret.rank_evidence(fact_reader.read(run, 1), "RUNNING").has_progress is has_progress


@pytest.mark.parametrize(
    ("attempts", "counted"),
    [
        ([], BudgetUsed(0, 0, 0)),
        ([entry(), entry()], BudgetUsed(0, 2, 2)),
        ([entry(), entry(progress=True)], BudgetUsed(0, 1, 0)),
        ([entry(cause="hang"), entry()], BudgetUsed(0, 2, 2)),
        ([entry(progress=True), entry()], BudgetUsed(0, 2, 1)),
        ([entry(), entry("requeue", "preemption")], BudgetUsed(1, 1, 1)),
        ([entry(), entry("requeue", "preemption", progress=True)], BudgetUsed(1, 0, 0)),
        ([entry("wait", "requeued"), entry("requeue", "preemption")], BudgetUsed(2, 0, 1)),
        ([entry("retry", "lost")], BudgetUsed(1, 0, 1)),
        ([entry(cause="out_of_memory"), entry(cause="node")], BudgetUsed(1, 1, 2)),
        ([entry("successor", "preemption")], BudgetUsed(1, 0, 0)),
        ([entry(), entry("requeue", "manual_stop")], BudgetUsed(1, 1, 1)),
        ([entry("requeue", "time_limit")] * 2, BudgetUsed(2, 0, 2)),
        ([entry("requeue", "time_limit"), entry()], BudgetUsed(1, 1, 2)),
        ([entry(), entry("hold"), entry()], BudgetUsed(0, 1, 1)),
        ([entry(), entry("cancel", "cancelled")], BudgetUsed(0, 0, 0)),
    ],
)
def test_budgets_are_counted_since_the_last_progress_and_anew_after_a_hold(attempts, counted):
    assert budget_used(parsed(attempts)) == counted


def test_crashes_of_the_last_24_hours_count():
    crashes = parsed([entry(stop=1000.0), entry(stop=50_000.0), entry(stop=90_000.0)])
    assert [budget_used(crashes, now).crashes for now in (87_000.0, 90_001.0, 180_000.0)] == [
        3,
        2,
        0,
    ]


@pytest.mark.parametrize(
    ("spans", "redone"),
    [
        ([], 0),
        ([(1, 20)], 0),
        ([(1, 10), (11, 20)], 0),
        ([(1, 15), (11, 20)], 5),
        ([(1, 15), (None, None), (11, 20)], 5),
        ([(1, 15), (11, 13), (11, 20)], 8),
    ],
)
def test_steps_redone_counts_each_repetition(spans, redone):
    assert interpret.steps_redone(parsed(entry(steps=span) for span in spans)) == redone


def test_an_attempt_did_the_steps_between_its_checkpoint_and_its_progress(run):
    Timeline(run, "rank-00000", 1).event("loaded", step=10)
    run.progress.write_text('{"step": 15}')
    assert interpret.steps_of(fact_reader.read(run, 1)) == (11, 15)
    assert interpret.steps_of(fact_reader.read(run, 2)) == (None, None)


def test_an_attempt_that_only_loaded_did_no_step(run):
    Timeline(run, "rank-00000", 1).event("loaded", step=10)
    run.progress.write_text('{"step": 10}')
    assert interpret.steps_of(fact_reader.read(run, 1)) == (None, None)


@pytest.mark.parametrize(
    ("attempts", "spans"),
    [
        ([("a", 1, 15), ("a", 11, 20)], [("a", 1, 20)]),
        ([("a", 1, 15), ("b", 11, 20)], [("a", 1, 10), ("b", 11, 20)]),
        ([("a", 1, 9), ("b", 10, 20), ("c", 5, 30)], [("a", 1, 4), ("c", 5, 30)]),
        ([("a", 1, 9), ("b", None, None), ("a", 10, 12)], [("a", 1, 12)]),
        ([("a", 1, 9), ("b", 1, 20)], [("b", 1, 20)]),
        ([(None, 1, 9)], []),
    ],
)
def test_the_result_states_which_code_did_which_steps(run, attempts, spans):
    for attempt, (code, *steps) in enumerate(attempts, 1):
        append_jsonl(run.attempts, entry(steps=tuple(steps), attempt=attempt) | {"code": code})
    code_spans = interpret.code_spans(fact_reader.read(run, 1).attempts)
    assert [(each.code, each.first_step, each.last_step) for each in code_spans] == spans


def test_the_times_of_an_attempt_are_from_its_warning_and_its_opening(run):
    attempt = opened(run, 1)  # at 1.0
    node(attempt, 0, (time.time() - 4, "SIGTERM"), (time.time() - 3, "SIGUSR1"))
    node(attempt, 1, (time.time() - 5, "SIGTERM"))
    for number, t in ((1, 8.5), (1, 9.5), (2, 20.0)):
        event = {"t": t, "event": "first_step", "attempt": number}
        append_jsonl(run.timeline("rank-00000"), event)
    times = interpret.times_of(fact_reader.read(run, 1), True, time.time())
    assert times[0] == pytest.approx(5, abs=1) and times[1] == 7.5
    assert interpret.times_of(fact_reader.read(run, 1), False, time.time()) == (None, 7.5)
    assert interpret.times_of(fact_reader.read(run, 3), True, time.time()) == (None, None)


@pytest.mark.parametrize(("job_state", "is_known"), [("LOST", False), ("RUNNING", True)])
def test_how_long_a_lost_attempt_took_to_stop_is_unknown(run, job_state, is_known):
    node(opened(run, 1), 0, (time.time() - 4000, "SIGTERM"))  # its job waited in the queue
    facts = fact_reader.read(run, 1)
    seen = interpret.rank_evidence(facts, job_state)
    record = record_writer.record_of(facts, seen, COMPLETED, time.time())
    assert seen.signals and (record.times.stop_s is not None) is is_known


KILLED_ON_N1 = {"rank": 1, "host": "n1", "exit_code": -9, "caused_by_peer": False}


def test_a_kill_for_memory_is_named_by_its_node_its_rank_and_its_limit(run):
    attempt = opened(run, 1)
    node(attempt, 0, torchrun_exit=1)
    node(attempt, 1, torchrun_exit=1)
    write_json(attempt.agent(1), read_json(attempt.agent(1)) | {"oom_kill": 1})
    failed(attempt, 0, 5.0, caused_by_peer=True)
    seen = interpret.rank_evidence(fact_reader.read(run, 1), "RUNNING")
    assert seen.kind is Kind.OUT_OF_MEMORY
    assert seen.error == "n1: the kernel killed a process for want of memory"
    write_json(attempt.agent(1), read_json(attempt.agent(1)) | {"memory_limit_mib": 600})
    write_json(attempt.rank_error(1), read_json(attempt.rank_error(0)) | KILLED_ON_N1)
    seen = interpret.rank_evidence(fact_reader.read(run, 1), "RUNNING")
    killed, limit = str(seen.error).split(": the job ")
    assert killed == "n1: the kernel killed rank 1 for want of memory"
    assert limit == "may use 600 MiB of the node (slurm.mem)"


def test_a_bad_node_is_the_cause_and_named_once(run):
    attempt = opened(run, 1)
    failed(attempt, 0, 5.0)
    for rank in (1, 2):
        failed(attempt, rank, 5.0 + rank, kind="bad_node", error="preflight: 2 is not 3")
        record = read_json(attempt.rank_error(rank))
        write_json(attempt.rank_error(rank), record | {"host": "n1"})
    seen = interpret.rank_evidence(fact_reader.read(run, 1), "RUNNING")
    assert seen.error == "rank 1 on n1: preflight: 2 is not 3"


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
    error = str(interpret.rank_evidence(facts, "RUNNING").error)
    assert error.startswith("rank 2 on n1, rank 3 on n1, rank 4 on n2 died without an error record")
    paths = sorted(path for name, path in operations.elements() if name == "open")
    assert len([path for path in paths if "agent" in path]) == 3
    timelines = [f"timeline/rank-{rank:05d}.jsonl" for rank in (0, 4, 5)]  # rank 0: the steps
    of_ranks = ["attempt-2/rank-00005.error.json", *timelines]
    assert [path for path in paths if "/rank-" in path] == of_ranks
