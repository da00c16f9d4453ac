"""A change of a run is carried out as a whole, also after a kill at any of its steps."""

import os

import pytest

from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.frozen import Revision
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Spec
from slurm_job_kit.jobs.runs import revision


class Killed(BaseException):
    pass


@pytest.fixture
def run(tmp_path):
    run_dir = RunDir(tmp_path)
    run_dir.spec.write_text(Spec().to_json())
    run_dir.setup.write_text("old")
    run_dir.cancelled.write_text("a cancel")
    run_dir.kit.symlink_to("first")
    (run_dir.checkpoints / "step-00000002").mkdir(parents=True)
    return run_dir


NEW = Revision(
    moves={"checkpoints/step-00000002": "checkpoints/aside-step-00000002"},
    files={"setup.sh": "new", "result.json": None, "cancelled": None},
    links={"kit": "second"},
)


def shown(run):
    files = {path.name: path.read_text() for path in run.path.iterdir() if path.is_file()}
    return files, os.readlink(run.kit), os.listdir(run.checkpoints)


def changed_as_a_whole(run):
    files, kit, checkpoints = shown(run)
    assert {*files} == {"spec.json", "setup.sh"} and files["setup.sh"] == "new"
    assert (kit, checkpoints) == ("second", ["aside-step-00000002"])


def test_a_change_that_is_kept_is_whole(run):
    with revision.changed({run: NEW}):
        changed_as_a_whole(run)
    changed_as_a_whole(run)


def test_a_failure_of_the_block_undoes_all(run):
    before = shown(run)
    with pytest.raises(Killed), revision.changed({run: NEW}):
        raise Killed
    assert shown(run) == before


@pytest.mark.parametrize("step", ["rename", "replace", "symlink", "unlink"])
@pytest.mark.parametrize("count", range(5))
def test_a_kill_in_the_middle_leaves_what_the_next_command_completes(run, monkeypatch, step, count):
    records.write(run.revision, NEW)
    left, real = [count], getattr(os, step)

    def dies(*args, **kwargs):
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, step, dies)
        try:
            revision.complete(run)
        except Killed:
            assert run.revision.exists()
    revision.complete(run)
    changed_as_a_whole(run)
