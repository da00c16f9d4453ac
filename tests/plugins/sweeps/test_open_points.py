"""Which points of a sweep a resume continues: none whose job or process may live."""

import os

import pytest

from slurm_job_kit.jobs.base.errors import FailedError, UserError
from slurm_job_kit.jobs.plugins.sweeps import sweep
from tests.core.fake_slurm import squeue_line
from tests.core.run_files import write_json
from tests.core.runs import test_state
from tests.core.runs.test_state import run as run


def test_a_point_that_cannot_be_read_still_has_its_job(run, slurm):
    run.attempts.write_text("{}\n")
    slurm.set_state("7", "RUNNING")
    assert sweep.open_points([run]) == []
    slurm.set_state("7", "FAILED")
    with pytest.raises(UserError, match="attempts.jsonl"):
        sweep.open_points([run])


def test_a_point_whose_process_died_may_have_a_job_that_was_queued_later(run, slurm):
    test_state.died_here(run)
    slurm.answer("squeue", status=1)
    with pytest.raises(FailedError, match="whether job 7 still runs"):
        sweep.open_points([run])
    slurm.answer("squeue", squeue_line("7", "HIBERNATING"))  # no state that the kit knows
    assert sweep.open_points([run]) == []


@pytest.mark.parametrize("word", ["COMPLETING", "REQUEUE_HOLD"])
def test_a_point_whose_job_still_lives_is_active_whatever_its_result(run, slurm, word):
    write_json(run.result, {"status": "held"})
    os.utime(run.submission, (0, 0))
    slurm.set_state("7", word)
    assert sweep.open_points([run]) == []
