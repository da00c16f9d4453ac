"""The command shell: the srun line for the node of a rank."""

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.slurm.job import plain_job_id
from tests.core import run_files
from tests.core.run_files import make_run, write_json


@pytest.fixture
def on_slurm(slurm, here):
    """A run as job 7 on two nodes with one rank each."""
    run = make_run(here)
    write_json(run.submission, {"argv": [], "job_id": "7"})
    write_json(run.owner, run_files.claim(attempt=2))
    run_files.opened(run, 2)
    slurm.set_state("7", "RUNNING")
    return run


def test_it_prints_a_step_on_the_node_of_the_rank(on_slurm, capsys):
    assert main(["shell", "tiny", "--rank", "1"]) == 0
    # Where memory is a resource the ranks have all of it; the user may have SLURM_EXPORT_ENV=NONE.
    node = "--nodelist=b --nodes=1 --ntasks=1"
    shown = f"srun --jobid=7 {node} --overlap --mem=0 --export=ALL --pty bash\n"
    assert capsys.readouterr().out == shown


def test_go_runs_the_line(on_slurm, monkeypatch):
    ran = []
    monkeypatch.setattr("os.execvpe", lambda file, argv, env: ran.append((file, argv[-1])))
    assert main(["shell", "tiny", "--go"]) == 0
    assert ran == [("srun", "bash")]


def test_a_rank_that_the_run_does_not_have_is_refused(on_slurm, capsys):
    assert main(["shell", "tiny", "--rank", "4"]) == 2
    assert "the ranks are 0 to 1" in capsys.readouterr().err


@pytest.mark.parametrize("state", ["PENDING", "COMPLETING", "COMPLETED"])
def test_a_job_that_does_not_run_is_refused(on_slurm, slurm, state, capsys):
    slurm.set_state("7", state)
    assert main(["shell", "tiny"]) == 2
    assert "has no running Slurm job" in capsys.readouterr().err


def test_srun_gets_the_number_of_an_arrays_task(slurm):
    slurm.answer("scontrol", "JobId=15 ArrayJobId=12 ArrayTaskId=3\n")
    assert (plain_job_id("12_3"), plain_job_id("12")) == ("15", "12")
