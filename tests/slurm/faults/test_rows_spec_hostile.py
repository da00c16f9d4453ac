"""Malicious input: specs, names, and a pickle as a checkpoint (row 31)."""

import hashlib
import json
import os
import pickle
from pathlib import Path

import pytest

from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.contract.checkpoint.manifest import manifest_text
from slurm_job_kit.jobs.contract.checkpoint.names import MANIFEST
from tests.core.run_files import answered

from ..kit import REPOSITORY, Kit
from . import harm_storage, oracles
from .rows import Row
from .test_rows_storage import step_of

TOUCH = "touch hacked"
NAME = f"a'; {TOUCH}; $({TOUCH}) `{TOUCH}` \""
REFUSED = {
    "a directive in the name": "name: \"x\\n#SBATCH --wrap='touch hacked'\"\n",
    "a command after the name": f'name: "x\\n{TOUCH}\\n"\n',
    "a folder elsewhere": "name: ../../hacked\n",
    "a pattern of Slurm's in the folder": "name: a %j\n",
    "an object in YAML": f"name: x\ntrain: !!python/object/apply:os.system ['{TOUCH}']\n",
    "aliases without end": "a: &a [x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nname: *c\n",
    "a second step by srun": (
        f'name: x\nslurm: {{srun_args: ["--job-name=x; {TOUCH}", "--bcast"]}}\n'
    ),
    "another script": f'name: x\nslurm: {{sbatch_args: {{wrap: "{TOUCH}"}}}}\n',
    "an option in a value": 'name: x\nslurm: {partition: "batch\\n--wrap=id"}\n',
    "no text at all": "\x00\xff\xfe",
    "a key twice": "name: x\nname: y\n",
}


def assert_nothing_happened(kit: Kit, cwd: Path = REPOSITORY) -> None:
    assert kit.cluster.job_ids() == []
    assert list(kit.runs_root.rglob("hacked")) == [] and not (cwd / "hacked").exists()


@pytest.mark.plugin("check")
def test_row_31_hostile_specs_run_nothing_and_write_nothing(row: Row, tmp_path: Path) -> None:
    config = tmp_path / "hostile.yaml"
    for what, text in REFUSED.items():
        config.write_bytes(text.encode("latin-1"))
        done = row.kit.jobs("submit", "--json", config, check=False)
        assert done.returncode == 2 and answered(done.stdout)["error"], (what, done)
        assert done.stderr and "Traceback" not in done.stderr, (what, done.stderr)
        assert list(tmp_path.iterdir()) == [config], what
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
