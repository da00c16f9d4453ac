"""A checkpoint is checked and copied as a whole; newer ones are put aside and come back."""

import pytest

from slurm_job_kit.jobs.base.errors import UserError
from slurm_job_kit.jobs.contract.checkpoint.names import checkpoint_names
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.plugins.changes import checkpoint_files
from slurm_job_kit.jobs.runs import revision
from tests.core.run_files import make_checkpoint


@pytest.fixture
def run(tmp_path):
    run_dir = RunDir(tmp_path / "run")
    for step in (10, 20, 30):
        make_checkpoint(run_dir, step, best=10)
    (run_dir.checkpoints / "best").write_text("step-00000020\n")
    return run_dir


def go_on_from(run, name):
    """Runs a block in which this is the newest checkpoint."""
    return revision.changed({run: checkpoint_files.go_on_from(run, name)})


def names(run):
    return sorted(path.name for path in run.checkpoints.iterdir() if path.is_dir())


def pointers(run):
    return [(run.checkpoints / name).read_text().strip() for name in ("latest", "best")]


def test_newer_checkpoints_are_put_aside_and_the_pointers_follow(run, capfd):
    with go_on_from(run, "step-00000010"):
        pass
    assert "put aside: step-00000030, step-00000020\n" in "".join(capfd.readouterr())
    assert names(run) == ["aside-step-00000020", "aside-step-00000030", "step-00000010"]
    assert checkpoint_names(run.checkpoints) == ["step-00000010"]
    assert pointers(run) == ["step-00000010", "step-00000010"]


def test_a_best_checkpoint_that_was_put_aside_is_not_named_any_more(run):
    (run.checkpoints / "step-00000020").rename(run.checkpoints / "step-00000025")
    with go_on_from(run, "step-00000010"):
        assert pointers(run) == ["step-00000010", "step-00000010"]
    make_checkpoint(run, 40, best=30)
    with go_on_from(run, "step-00000040"):
        assert not (run.checkpoints / "best").exists()


@pytest.mark.parametrize(
    ("file", "was", "reason"),
    [
        ("state.pt", "state 10", r"state\.pt does not agree with its SHA-256"),
        ("manifest.json", '"global_step": 10', r"manifest\.json: it does not agree with its own"),
    ],
)
def test_nothing_is_put_aside_for_a_damaged_checkpoint(run, file, was, reason):
    path = run.checkpoints / "step-00000010" / file
    path.write_text(path.read_text().replace(was, was.replace("10", "11")))
    before = names(run)
    with pytest.raises(UserError, match=f"damaged: {reason}"), go_on_from(run, "step-00000010"):
        pass
    assert names(run) == before


def test_a_copy_has_the_same_bytes_and_is_the_newest_of_the_other_run(run, tmp_path):
    other = RunDir(tmp_path / "other")
    other.checkpoints.mkdir(parents=True)
    checkpoint_files.copy(run.checkpoints / "step-00000020", other.checkpoints)
    copied = other.checkpoints / "step-00000020"
    assert (copied / "state.pt").read_bytes() == b"state 20"
    assert (copied / "state.pt").stat().st_nlink == 1
    assert (other.checkpoints / "latest").read_text() == "step-00000020\n"
    assert not (other.checkpoints / "best").exists()  # its best one is another


@pytest.mark.parametrize("harm", ["damaged", "missing"])
def test_no_copy_of_a_damaged_checkpoint_is_left(run, tmp_path, harm):
    state = run.checkpoints / "step-00000020/state.pt"
    state.write_bytes(b"x") if harm == "damaged" else state.unlink()
    other = RunDir(tmp_path / "other")
    other.checkpoints.mkdir(parents=True)
    with pytest.raises(UserError, match=r"step-00000020\S* (is damaged: |has no )state\.pt"):
        checkpoint_files.copy(run.checkpoints / "step-00000020", other.checkpoints)
    assert list(other.checkpoints.iterdir()) == []
