"""Malicious input: specs, names, and a pickle as a checkpoint (row 31)."""

import hashlib
import json
import os
import pickle
import random
from pathlib import Path

from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.contract.checkpoint.manifest import manifest_text
from slurm_job_kit.jobs.contract.checkpoint.names import MANIFEST

from ..kit import PACED, REPOSITORY, Kit
from . import harm_storage, oracles
from .rows import Row
from .test_rows_storage import step_of

TOUCH = "touch hacked"
NAME = f"a'; {TOUCH}; $({TOUCH}) `{TOUCH}` \""


def assert_nothing_happened(kit: Kit, cwd: Path = REPOSITORY) -> None:
    assert kit.cluster.job_ids() == []
    assert list(kit.runs_root.rglob("hacked")) == [] and not (cwd / "hacked").exists()


def test_row_31_spoilt_specs_are_taken_or_refused_in_words(row: Row, tmp_path: Path) -> None:
    config, chance = tmp_path / "spoilt.yaml", random.Random(31)
    text = (REPOSITORY / PACED).read_bytes()
    for _ in range(8):
        spoilt = bytearray(text)
        for place in chance.sample(range(len(text)), 5):
            spoilt[place] = chance.randrange(256)
        config.write_bytes(spoilt)
        done = row.kit.jobs("submit", "--dry-run", config, check=False)
        assert done.returncode in (0, 1, 2) and "Traceback" not in done.stderr, (spoilt, done)
        assert list(tmp_path.iterdir()) == [config], spoilt
    assert_nothing_happened(row.kit)


class Evil:
    """Runs a command in the process that unpickles it."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (TOUCH,)


def test_row_31_hostile_name_and_a_pickle_as_checkpoint(row: Row) -> None:
    paced = row.start(f"name={json.dumps(NAME)}", "checkpoint.every_steps=1")
    run = paced.run
    assert row.kit.run("squeue", "--noheader", "--format=%j").stdout == NAME + "\n"
    run.wait_for_step(3)
    harm_storage.pause(run)
    newest, older, *_ = harm_storage.committed(run.dir)
    checkpoint = run.dir.checkpoints / newest
    evil = pickle.dumps(Evil())
    (checkpoint / "state.json").write_bytes(evil)
    # It matches its own manifest, so that only the parser itself can refuse it.
    manifest = read_json(checkpoint / MANIFEST)
    manifest["files"]["state.json"] = {
        "size": len(evil),
        "sha256": hashlib.sha256(evil).hexdigest(),
    }
    (checkpoint / MANIFEST).write_bytes(manifest_text(manifest))
    harm_storage.release(run)
    paced.finish()

    assert run.loaded(2) == {step_of(older)}
    assert f"put aside, {run.dir.checkpoints}/quarantined-{newest}: " in run.dir.job_log.read_text()
    oracles.ended(run, row.reference(), ["time_limit", "completed"])
    assert_nothing_happened(row.kit, run.dir.path)
    assert_nothing_happened(row.kit, run.dir.code)
