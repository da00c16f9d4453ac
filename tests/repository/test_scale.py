"""The simulated Slurm: the kit's decisions alone decide what it reaches."""

from dataclasses import replace

import pytest

from slurm_job_kit.jobs.attempt.decision import Action, Cause, Decision, decide
from slurm_job_kit.jobs.spec import Slurm, Spec
from tests.scale.costs import DAY_S, Costs, Rates
from tests.scale.world import World, totals

# 200 nodes that fail as often as 10,000 do.
OFTEN = replace(Rates(), per_node_day=50 * Rates().per_node_day)
DAYS_S = 3 * DAY_S


def simulated(sizes=(180,), rates=OFTEN, seconds=DAYS_S, **more):
    world = World(200, sizes, rates=rates, **more)
    world.run(seconds)
    return totals(world, seconds)


def test_a_simulation_is_the_same_for_the_same_seed():
    assert simulated(sizes=(60, 60, 60)) == simulated(sizes=(60, 60, 60))
    assert simulated() != simulated(seed=2)


def test_every_second_is_useful_lost_queued_or_held():
    world = World(200, [60, 60, 60], rates=OFTEN)
    world.run(DAYS_S)
    for each in world.trainings:
        sums = each.sums
        assert sums.allocated_s + sums.queued_s + sums.held_s == pytest.approx(DAYS_S)
        assert sums.useful_s < sums.allocated_s


@pytest.mark.parametrize(
    "action", [Action.HOLD, pytest.param(Action.RETRY, marks=pytest.mark.slow)]
)
def test_another_policy_reaches_less(action):
    """The simulator has no policy: with `decide` replaced nothing makes up for it."""
    always = Decision(action, Cause.CRASH, "always")
    ours, theirs = simulated(seconds=DAY_S), simulated(seconds=DAY_S, decide=lambda *_: always)
    assert theirs.goodput < ours.goodput - 0.1


def test_a_policy_without_retries_waits_in_the_queue_for_each_crash():
    def requeues(evidence, history, budget):
        decision = decide(evidence, history, budget)
        if decision.action is Action.RETRY:
            return replace(decision, action=Action.REQUEUE)
        return decision

    spec = Spec(slurm=Slurm(max_restarts=10_000))
    ours, theirs = simulated(spec=spec), simulated(spec=spec, decide=requeues)
    assert theirs.starts > ours.starts and theirs.queued > 1.5 * ours.queued


def test_without_faults_only_start_and_saves_cost():
    costs = Costs(start_s=100.0, save_every_s=60.0, save_stall_s=1.0)
    reached = simulated(rates=replace(OFTEN, per_node_day=0.0), costs=costs)
    assert reached.goodput == pytest.approx((1 - 100 / DAYS_S) * 60 / 61, rel=1e-3)
    assert (reached.attempts, reached.starts, reached.queued) == (1, 1, 0)


@pytest.mark.parametrize("start_s", [0, 10])
def test_crashes_at_known_times_cost_what_the_closed_form_has(start_s):
    """Each crash costs its detection, the retry, and the work since the last checkpoint."""
    costs = Costs(start_s, retry_s=4, crash_s=1, save_every_s=20, save_stall_s=0, save_commit_s=0)
    world = World(2, [2], costs)
    first, second = start_s + 115, start_s + 115 + 5 + 105
    world.run(1000, [(first, "crash", 0), (second, "crash", 0)])
    # 15 of 115 s are lost, then 5 of 105.
    expected = (1000 - start_s - 2 * 5 - 15 - 5) / 1000
    assert totals(world, 1000).goodput == pytest.approx(expected)
    assert [each.decision for each in world.trainings[0].run.attempts] == ["retry", "retry"]


def test_the_calls_of_slurm_are_those_of_the_kit():
    world = World(4, [2], Costs())
    world.run(4000, [(500, "crash", 0), (1500, "node", 1), (3000, "preemption", 0)])
    ends = [(each.cause, each.decision) for each in world.trainings[0].run.attempts]
    assert ends == [("crash", "retry"), ("node", "requeue"), ("preemption", "requeue")]
    # One at the first attempt of the job, one for each close, one after each requeue.
    assert world.slurm.calls["scontrol show job"] == 1 + 3 + 2
    assert world.slurm.calls["scontrol requeue"] == 2
    assert world.slurm.calls["scancel"] == 1


def test_slurm_itself_requeues_preempted_jobs_since_24_05():
    faults = [(500.0, "preemption", 0)]
    for version, decision in (("22.05.8", "requeue"), ("24.11.5", "wait")):
        world = World(4, [2], version=version)
        world.run(8000, faults)
        assert [each.decision for each in world.trainings[0].run.attempts] == [decision]
        assert world.trainings[0].job.state == "RUNNING"


@pytest.mark.parametrize("repair_s", [200.0, 5000.0])
def test_a_run_goes_on_after_its_first_node_was_silent(repair_s):
    """The batch script runs there: it lives if the network is back before SlurmdTimeout."""
    world = World(4, [2], rates=replace(Rates(), repair_s=repair_s))
    world.run(8000, [(500.0, "node", 0)])
    training = world.trainings[0]
    assert training.run.attempts[0].decision == "retry"
    assert training.run.attempts[0].cause == ("crash" if repair_s < 300 else "node")
    assert training.phase == "training" and training.sums.useful_s > 7000
