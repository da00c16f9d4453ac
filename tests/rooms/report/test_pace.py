"""The pace of rank 0, which the report draws."""

from types import SimpleNamespace

import pytest

from slurm_job_kit.jobs.records.training import read_events
from slurm_job_kit.jobs.rooms.report import STEPS_WRITER
from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.spec import Spec
from slurm_job_kit.trainer.process.watcher import Pulse
from slurm_job_kit.trainer.rooms.report import hooks
from tests.core.ranks import context_of


@pytest.mark.parametrize("is_writable", [True, False])
def test_the_timeline_has_step_speed_and_memory_at_most_every_ten_seconds(
    tmp_path, monkeypatch, is_writable
):
    run_dir, clock = RunDir(tmp_path), SimpleNamespace(s=1000.0)
    if is_writable:  # else it ends no training
        run_dir.timeline("x").parent.mkdir()
    monkeypatch.setattr(hooks, "time", SimpleNamespace(monotonic=lambda: clock.s))
    (pace,) = hooks.callbacks(Pulse())
    pace.restored(SimpleNamespace(context=context_of(tmp_path, Spec())))  # type: ignore[arg-type]
    for step in range(1, 8):
        clock.s += 4.0
        pace.reported(step, {"train_loss": 1.0, "samples_per_s": 12.0})
        pace.reported(step, {"eval_loss": 1.0})
    lines = read_events(run_dir.timeline(STEPS_WRITER))
    assert [each.step for each in lines] == ([1, 4, 7] if is_writable else [])
    assert all((each.samples_per_s, each.attempt) == (12, 1) and each.memory_mib for each in lines)
