"""A run directory for the tests of `why`, and the answer of the command."""

from typing import Any

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.attempt.ending import ending_of
from slurm_job_kit.jobs.attempt.reasons import with_reason
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.ended import read_attempts
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.runs import fact_reader
from tests.core import run_files
from tests.core.run_files import answered, make_run, write_json


class Story:
    """A run whose attempts the test writes, and what `why` answers about it."""

    def __init__(self, run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
        self.run = run
        self._capsys = capsys

    def attempt(self, number: int = 1, evidence: Any = (), **fields: Any) -> None:
        """Write the record and the files of an attempt on the nodes a and b."""
        folder = run_files.opened(self.run, number)
        for rank, host in enumerate(("a", "b")):
            run_files.node(folder, rank, host=host, torchrun_exit=1)
        reason = {"reason": dict(evidence).get("error") or "why"}
        run_files.recorded(self.run, evidence, attempt=number, **reason | fields)

    def error(self, rank: int = 1, number: int = 1, log: str = "", **fields: Any) -> None:
        """Write the error record of a rank of node b, and its log."""
        record = {"time": 5.0, "rank": rank, "host": "b", "error": "ValueError: x"} | fields
        write_json(self.run.attempt(number).rank_error(rank), record)
        self.run.attempt(number).rank_log(rank).write_text(
            log or f"begin\nerror: {record['error']}\n"
        )

    def held(self, reason: str = "x") -> None:
        """Write the result of a run that was held."""
        write_json(self.run.result, {"status": "held", "reason": reason, "attempts": 1})

    def name_reasons(self) -> None:
        """Give each record its reasons, as the close of an attempt does."""
        named = []
        for each in read_attempts(self.run):
            facts = fact_reader.read(self.run, each.attempt)
            ending = ending_of(facts, each.evidence, each.times.stop)
            named.append(with_reason(self.run, facts, ending, each))
        self.run.attempts.unlink(missing_ok=True)
        for each in named:
            records.append(self.run.attempts, each)

    def why(self) -> dict[str, Any]:
        """The answer as JSON."""
        self.name_reasons()
        assert main(["why", str(self.run.path), "--json"]) == 0
        return answered(self._capsys.readouterr().out)

    def text(self) -> str:
        """The answer as people see it."""
        self.name_reasons()
        assert main(["why", str(self.run.path)]) == 0
        return self._capsys.readouterr().out


@pytest.fixture
def story(here, capsys):
    """A run that has not started, on a machine without Slurm."""
    return Story(make_run(here), capsys)


@pytest.fixture
def queued(slurm, story):
    """`queued(state)`: the run of job 7, which fake Slurm shows in a state."""

    def in_state(state, **submission):
        slurm.set_state("7", state)
        write_json(story.run.submission, {"job_id": "7"} | submission)
        return story

    return in_state
