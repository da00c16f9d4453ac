"""What the first node of a start decides on files that other hosts have written just before."""

import subprocess
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from slurm_job_kit.jobs.attempt.open import refuse
from slurm_job_kit.jobs.base.errors import FailedError
from slurm_job_kit.jobs.contract.records.nodes import read_agents
from slurm_job_kit.jobs.contract.records.timeline import Timeline
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Spec
from slurm_job_kit.jobs.node.agent import Agent
from slurm_job_kit.jobs.runs import fact_reader, run_lock
from tests.core.run_files import failed, node, opened, write_json
from tests.core.two_hosts import look

NAMES = (
    *("attempt-1", "attempt-2", "plan.json", "outcome.json", "result.json", "attempts.jsonl"),
    *("owner.json", "cancelled", "successor.json", "submission.json", "progress.json"),
    *("agent-00000.json", "agent-00001.json", "rank-00001.error.json", "rank-00000.jsonl"),
    *("checkpoints", "timeline", "logs", "code", "two", "step-00000006"),
)


@pytest.fixture
def run(hosts):
    """A run with one attempt, as the host `here` has it. What else it has, a test makes later."""
    run_dir = RunDir(hosts.here / "x/1")
    run_dir.path.mkdir(parents=True)
    run_dir.spec.write_text(Spec().to_json())
    opened(run_dir, 1)
    return run_dir


@pytest.fixture
def there(hosts, run):
    """The same run on the first node of the next start, which has looked at all of it."""
    look(hosts.there, *NAMES)
    return hosts.run_there(run)


def test_a_close_reads_what_all_nodes_have_written(hosts, run, there):
    attempt = run.attempt(1)
    node(attempt, 0)
    node(attempt, 1, (2.0, "SIGTERM"), torchrun_exit=1)
    failed(attempt, 1, 3.0)
    write_json(attempt.outcome, {"status": "stopped", "global_step": 6})
    run.progress.write_text('{"step": 6}')
    run.timeline("x").parent.mkdir()
    Timeline(run, "rank-00000", 1).event("first_step", step=1)
    (run.checkpoints / "step-00000006").mkdir(parents=True)
    facts = fact_reader.read(there, 1)
    assert len(facts.of_nodes.agents) == 2 and None not in facts.of_nodes.agents
    assert facts.outcome.status == "stopped" and facts.step == 6
    assert [each.rank for each in facts.of_nodes.errors] == [1]
    assert [each.event for each in facts.of_nodes.events] == ["first_step"]
    assert facts.saved.checkpoint == "step-00000006"
    assert len(read_agents(there, 1)) == 2


def test_a_run_that_was_cancelled_on_the_login_node_starts_only_after_a_resume(hosts, run, there):
    me = run_lock.this_process("7")
    run.cancelled.write_text("now")
    with pytest.raises(FailedError, match="the run was cancelled"):
        refuse(there, fact_reader.read(there, 1), me)
    look(hosts.there, *NAMES)
    run.cancelled.unlink()
    refuse(there, fact_reader.read(there, 1), me)


def test_a_script_that_looks_by_itself_sees_the_stop_of_its_own_node_at_once(run, there):
    """Its node looked before, and goes on to see no file that another host has created."""
    stop = there.attempt(1).stop_requested
    shell = ["bash", "-c", '[ -e "$0" ]', stop]
    assert subprocess.run(shell).returncode == 1
    run.attempt(1).stop_requested.touch()
    agent = SimpleNamespace(attempt_dir=there.attempt(1), best_effort=nullcontext)
    Agent.show_stop(agent)  # type: ignore[arg-type]
    assert subprocess.run(shell).returncode == 0
