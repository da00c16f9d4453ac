"""Checkpoints that rank 0 of another host has just saved, put aside or pruned."""

import dataclasses

import pytest

from slurm_job_kit.jobs.contract.checkpoint import reader
from slurm_job_kit.jobs.contract.checkpoint.names import checkpoint_names
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Checkpoint
from slurm_job_kit.trainer.checkpoint import recovery
from slurm_job_kit.trainer.process.run_handle import RankContext
from slurm_job_kit.trainer.training.reporter import open_cut
from tests.core.checkpoint.checkpoint_kit import bits, job_of, loaded, replica_of, save
from tests.core.two_hosts import TwoHosts, look

pytestmark = pytest.mark.usefixtures("process_group")

NAMES = ("step-00000003", "step-00000006", "step-00000009", "latest", "best")


@pytest.fixture
def here(hosts: TwoHosts) -> RankContext:
    """The run on the host that saves."""
    context: RankContext = job_of(hosts.here / "run", keep=Checkpoint(keep_last=2))
    return context


@pytest.fixture
def there(hosts: TwoHosts, here: RankContext) -> RankContext:
    """The same run on the other host."""
    run = dataclasses.replace(here.run, dir=RunDir(hosts.there / "run"))
    return dataclasses.replace(here, run=run)


def test_a_requeue_onto_a_host_that_listed_the_checkpoints_before_goes_on_from_the_newest(
    here, there, capsys
):
    save(here, replica_of(), 3)
    look(there.run.dir.path, *NAMES)
    save(here, saved := replica_of(seed=2), 6)
    assert loaded(there, fresh := replica_of(seed=1)).global_step == 6
    assert bits(fresh) == bits(saved)
    assert "missing" not in capsys.readouterr().out


def test_what_only_an_old_cache_lacks_is_not_quarantined(here, there, monkeypatch):
    save(here, replica_of(), 6)
    look(there.run.dir.checkpoints)
    parts = []

    def parse(contents):
        """Find damage the first time, as a cache with old pages would show it."""
        parts.append(contents.manifest.global_step)
        if len(parts) == 1:
            raise reader.DamageError("old pages")
        return parts[-1]

    assert recovery.read_newest(there.run.dir.checkpoints, ["step-00000006"], parse, print) == 6
    assert len(parts) == 2 and checkpoint_names(here.run.dir.checkpoints) == ["step-00000006"]


def test_an_attempt_on_another_host_keeps_the_metrics_so_far(here, there):
    look(there.run.dir.path, "metrics.jsonl")
    here.run.dir.metrics.write_text("one\ntwo\n")
    open_cut(there.run.dir.metrics, 4).close()
    assert here.run.dir.metrics.read_text() == "one\n"
