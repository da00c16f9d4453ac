"""Files are damaged or lost between two attempts (rows 20 and 35)."""

from __future__ import annotations

from ..kit import JOB_TIMEOUT_S, Kit, Run
from . import harm_storage, oracles
from .rows import Row
from .scenario import Untouched, start

EVERY_STEP = ("checkpoint.every_steps=1", "checkpoint.keep_last=9")


def loaded(run: Run, attempt: int) -> set[int]:
    """The steps that the ranks of an attempt began with: one, if all is well."""
    return {e["step"] for e in run.events("loaded") if e["attempt"] == attempt}


def wait_for_saves(run: Run, attempt: int, number: int) -> None:
    """Wait until an attempt has committed as many checkpoints."""

    def is_there() -> bool:
        return sum(e["attempt"] == attempt for e in run.events("save")) >= number

    what = f"{number} checkpoints of attempt {attempt} of {run.dir.path}"
    run.cluster.wait_for(is_there, what, JOB_TIMEOUT_S)


def step_of(name: str) -> int:
    return int(name.removeprefix("step-"))


def test_row_20_damaged_checkpoints_and_hints(kit: Kit, untouched: Untouched, row: Row) -> None:
    """Five damages at once: each of these checkpoints is the newest when its turn comes."""
    paced = start(kit, *EVERY_STEP)
    run = paced.run
    row.record(run)
    run.wait_for_step(7)
    harm_storage.pause(run)
    damaged = harm_storage.damage_newest(run.dir, *harm_storage.DAMAGES)
    older = step_of(harm_storage.committed(run.dir)[len(damaged)])
    # It names what is put aside now.
    assert (run.dir.checkpoints / "latest").read_text().strip() == damaged[0]
    harm_storage.release(run)

    wait_for_saves(run, 2, 3)
    harm_storage.pause(run)
    (bad,) = harm_storage.damage_newest(run.dir, harm_storage.flip_a_bit, file="manifest.json")
    (run.dir.checkpoints / "latest").write_text(f"step-{older:08d}\n")
    even_older = step_of(harm_storage.committed(run.dir)[1])
    harm_storage.release(run)
    paced.finish()

    assert (loaded(run, 2), loaded(run, 3)) == ({older}, {even_older})
    attempts = run.attempts()
    assert [len(attempt["quarantined"]) for attempt in attempts] == [0, len(damaged), 1]
    log = run.dir.job_log.read_text()
    for name in [*damaged, bad]:
        aside = run.dir.checkpoints / f"quarantined-{name}"
        reason = (aside / "REASON").read_text().strip()
        assert f"a damaged checkpoint was put aside, {aside}: {reason}\n" in log
    oracles.bitwise(run, untouched())
    oracles.causes(run, ["time_limit", "time_limit", "completed"])
    oracles.nothing_left(run)
