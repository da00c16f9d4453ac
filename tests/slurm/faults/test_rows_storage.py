"""Files are damaged or lost between two attempts (rows 20 and 35)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from . import harm_storage, oracles
from .rows import Row
from .scenario import Paced

EVERY_STEP = ("checkpoint.every_steps=1", "checkpoint.keep_last=99")


def pause_behind(row: Row, step: int) -> Paced:
    """A run that saves at each step, warned after this step and held in the queue."""
    paced = row.start(*EVERY_STEP)
    paced.run.wait_for_events("save", step)
    harm_storage.pause(paced.run)
    return paced


def step_of(name: str) -> int:
    return int(name.removeprefix("step-"))


def test_row_20_a_damaged_checkpoint(row: Row) -> None:
    """It is quarantined with the reason, and the next older one loads. `latest` is stale, too."""
    paced = pause_behind(row, 3)
    run, latest = paced.run, paced.run.dir.checkpoints / "latest"
    (damaged,) = harm_storage.damage_newest(run.dir, harm_storage.flip_a_bit, file="manifest.json")
    older, even_older, *_ = harm_storage.committed(run.dir)[1:]
    assert latest.read_text().strip() == damaged
    latest.write_text(f"{even_older}\n")
    harm_storage.release(run)
    paced.finish()
    assert run.loaded(2) == {step_of(older)}
    assert [len(attempt["quarantined"]) for attempt in run.attempts()] == [0, 1]
    aside = run.dir.checkpoints / f"quarantined-{damaged}"
    told = f"a damaged checkpoint was put aside, {aside}: {(aside / 'REASON').read_text()}"
    assert told in run.dir.job_log.read_text()
    oracles.ended(run, row.reference(), ["time_limit", "completed"])


def test_row_35_a_purge_takes_what_the_run_can_do_without(row: Row) -> None:
    paced = pause_behind(row, 4)
    run = paced.run
    lost = harm_storage.purge(run.dir)
    older = step_of(harm_storage.committed(run.dir)[1])
    for log in run.dir.attempt(1).path.glob("rank-*.log"):
        log.unlink()
    kept = harm_storage.committed(run.dir)[1:]
    harm_storage.release(run)
    paced.finish()

    assert run.loaded(2) == {older}
    assert set(kept) <= set(harm_storage.committed(run.dir))
    said = run.dir.job_log.read_text()
    assert f"a damaged checkpoint was put aside, {run.dir.checkpoints}/quarantined-{lost}: " in said
    oracles.ended(run, row.reference(), ["lost", "completed"])
    assert not list(run.dir.attempt(1).path.glob("rank-*.log")), "attempt 1 began again"


@contextmanager
def away(path: Path, elsewhere: Path) -> Iterator[None]:
    path.rename(elsewhere / path.name)
    yield
    (elsewhere / path.name).rename(path)


@pytest.mark.plugin("changes")
def test_row_35_a_purge_takes_what_the_run_cannot_do_without(
    row: Row, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each time the queued job ends with the reason, writes nothing, and a resume continues."""
    paced = row.begin(step=3)
    run = paced.run
    harm_storage.stop(run)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (checkpoint,) = harm_storage.committed(run.dir)
    code = run.dir.kit.resolve() / "slurm_job_kit"

    def fail_without(path: Path) -> str:
        """The output of a job that starts without this file or folder."""
        queued = row.kit.resume(run, "slurm.sbatch_args.hold=true")
        with away(path, elsewhere):
            before = run.dir.job_log.stat().st_size, run.dir.metrics.read_bytes()
            harm_storage.release(queued)
            queued.wait("FAILED")
            oracles.nothing_left(run)
            assert run.dir.metrics.read_bytes() == before[1]
            return run.dir.job_log.read_text()[before[0] :]

    assert f"error: {run.dir.spec} is missing, perhaps deleted by a scratch purge" in fail_without(
        run.dir.spec
    )
    assert f"error: {run.dir.setup} is missing" in fail_without(run.dir.setup)
    said = fail_without(code / "trainer/training/loop.py")
    assert "error: the frozen code has lost or changed files: " in said
    assert f"{code}/trainer/training/loop.py is missing\n" in said
    assert "Traceback" not in run.dir.job_log.read_text()
    said = fail_without(run.dir.checkpoints / checkpoint)
    assert f"the run had checkpoint {checkpoint}, but " in said

    with away(run.dir.spec, elsewhere):
        told = row.kit.jobs("resume", run.dir.path, check=False)
        assert (told.returncode, told.stdout) == (2, "")
        assert told.stderr.startswith(f"error: {run.dir.spec} is gone\n  hint: ")
    run.dir.setup.unlink()  # recreated by resume
    resumed = replace(paced, run=row.kit.resume(run, "slurm.sbatch_args.hold=false"))
    resumed.finish()
    # Without its checkpoints the ranks start, and find no checkpoint to read.
    oracles.ended(run, row.reference(), ["time_limit", "crash", "completed"])
