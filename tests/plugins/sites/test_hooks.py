"""What is said of a site before a job of a run is queued."""

import pytest

from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.config.loaded import LoadedSpec
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Slurm, Spec
from slurm_job_kit.jobs.plugins.sites import hooks
from tests.core import run_files


@pytest.fixture
def queue(fake_slurm, tmp_path):
    """`queue(is_on_slurm, is_frozen)`: what stands before the queue."""
    fake_slurm.answer("scontrol", "PreemptType = preempt/partition_prio\n", when="*config")
    partition = "PartitionName=batch\n   Default=YES PreemptMode=CANCEL\n"
    fake_slurm.answer("scontrol", partition, when="--all show partition*")

    def call(is_on_slurm=True, is_frozen=True, restart="auto"):
        spec = Spec(name="first", slurm=Slurm(restart=restart))
        run = RunDir(tmp_path / "runs/first/1")
        if is_frozen:
            run_files.frozen(run.path, spec)
        hooks.before_queue({run: LoadedSpec(spec, "")}, is_on_slurm, is_checked=True)
        return run

    return call


@pytest.mark.parametrize(
    ("restart", "is_noted"), [("auto", True), ("requeue", True), ("successor", False)]
)
def test_a_site_that_cancels_is_noted_and_recorded(queue, capfd, restart, is_noted):
    run, note = queue(restart=restart), "slurm.restart: partition batch cancels what it preempts"
    assert (note in capfd.readouterr().err) is is_noted
    assert read_json(run.path / "preemption.json") == {"cancels": True, "qos": None}


def test_a_dry_run_writes_nothing(queue, capfd):
    run = queue(is_frozen=False)
    assert "cancels what it preempts" in capfd.readouterr().err
    assert not run.path.exists()


def test_a_run_on_this_machine_asks_no_slurm(queue, fake_slurm):
    queue(is_on_slurm=False)
    assert fake_slurm.calls == []
