"""The newest undamaged checkpoint comes back; one that is damaged or lost is named."""

import functools
import json
import shutil

import pytest

from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.contract.checkpoint.manifest import Manifest
from slurm_job_kit.jobs.contract.checkpoint.names import LATEST, checkpoint_names
from slurm_job_kit.jobs.contract.checkpoint.part_file import part_name
from slurm_job_kit.trainer.checkpoint import commit, recovery
from slurm_job_kit.trainer.checkpoint.checkpoints import Checkpoints
from slurm_job_kit.trainer.checkpoint.loading import ReadAhead
from slurm_job_kit.trainer.errors import StorageError, Superseded, UserError
from tests.core.checkpoint.checkpoint_kit import (
    BATCHES,
    bits,
    job_of,
    loaded,
    replica_of,
    save,
    state_at,
)

pytestmark = pytest.mark.usefixtures("process_group")


def test_all_that_was_saved_comes_back(tmp_path):
    context, saved = job_of(tmp_path), replica_of()
    saved.precision.scaler.load_state_dict({**saved.precision.scaler.state_dict(), "scale": 512.0})
    best = {"metric": "eval_loss", "value": 0.5, "step": 6}
    more = {"last_eval_step": 6, "metrics_bytes": 9, "evals_since_best": 2, "best": best}
    more |= {"environments": [{"torch": "2"}]}
    state = state_at(6, **more)
    save(context, saved, 6, **more)
    fresh, newest = replica_of(seed=1), ReadAhead(context)
    checkpoints = Checkpoints(context, BATCHES)
    assert bits(fresh) != bits(saved)
    loaded = checkpoints.load(fresh, newest)
    assert loaded.window.tolist() == state.window.tolist()
    assert vars(loaded) | {"window": state.window} == vars(state)
    assert checkpoints.newest_step == 6
    assert (
        bits(fresh) == bits(saved)
        and fresh.precision.scaler.state_dict() == saved.precision.scaler.state_dict()
    )
    assert [group["betas"] for group in fresh.optimizer.param_groups] == [(0.9, 0.999)]
    manifest = read_json(context.run.dir.checkpoints / "step-00000006" / "manifest.json")
    assert (manifest["world_size"], manifest["attempt"], manifest["best"]) == (1, 1, best)


def test_a_state_from_another_run_brings_no_offset_of_its_metrics(tmp_path):
    context = job_of(tmp_path)
    save(context, replica_of(), 6, metrics_bytes=70)
    assert loaded(context, replica_of()).metrics_bytes == 70
    origin = {"run_id": "x", "run_dir": "/x", "checkpoint": "step-00000006", "step": 6}
    context.run.dir.provenance.write_text(json.dumps({"origin": origin}))
    assert loaded(context, replica_of()).metrics_bytes == 0
    save(context, replica_of(), 9, metrics_bytes=30)
    assert loaded(context, replica_of()).metrics_bytes == 30


def record_attempts(context, *checkpoints):
    lines = [json.dumps({"attempt": i, "checkpoint": name}) for i, name in enumerate(checkpoints)]
    context.run.dir.attempts.write_text("".join(f"{line}\n" for line in lines))


def test_a_checkpoint_that_a_user_put_aside_is_not_missed(tmp_path):
    context = job_of(tmp_path)
    root = context.run.dir.checkpoints
    save(context, replica_of(), 6)
    save(context, replica_of(), 9)
    record_attempts(context, "step-00000009")
    assert recovery.known_of_run(context.run.dir).newest == "step-00000009"
    (root / "step-00000009").rename(root / "aside-step-00000009")
    assert recovery.known_of_run(context.run.dir).newest == "step-00000006"


# The file that still shows that there were checkpoints.
@pytest.mark.parametrize("how", ["records", "hint", "damaged"])
def test_a_run_that_lost_all_its_checkpoints_does_not_start_at_step_0(tmp_path, how):
    context = job_of(tmp_path)
    save(context, replica_of(), 6)
    root = context.run.dir.checkpoints
    if how == "records":
        shutil.rmtree(root)
        record_attempts(context, "step-00000006", None)
    elif how == "hint":
        shutil.rmtree(root / "step-00000006")
    else:
        (root / "step-00000006" / "rank-00000.safetensors").unlink()
        (root / LATEST).write_bytes(b"\xff")
    words = (
        rf"^the run had checkpoint step-00000006, but {tmp_path}/checkpoints has no undamaged one\n"
        "  hint: bring its files back and resume, or begin a new run; nothing was overwritten$"
    )
    with pytest.raises(UserError, match=words):
        loaded(context, replica_of())


def test_a_run_that_was_stopped_before_its_first_checkpoint_starts_at_step_0(tmp_path):
    context = job_of(tmp_path)
    record_attempts(context, None, None)
    newest, checkpoints = ReadAhead(context), Checkpoints(context, BATCHES)
    state = checkpoints.load(replica_of(), newest)
    assert (state.global_step, state.best, checkpoints.newest_step) == (0, {}, None)


def test_a_checkpoint_that_is_gone_is_named_and_an_older_one_used(tmp_path, capsys):
    context = job_of(tmp_path)
    for step in (3, 6):
        save(context, replica_of(), step)
    shutil.rmtree(context.run.dir.checkpoints / "step-00000006")
    assert loaded(context, replica_of()).global_step == 3
    words = f"step-00000006 is missing from {tmp_path}/checkpoints: continuing from an older one\n"
    assert words in capsys.readouterr().out
    save(context, replica_of(), 4)
    loaded(context, replica_of())
    assert "is missing" not in capsys.readouterr().out


def write(content, sink):
    sink.write(content)


def state_of(tensor: str) -> bytes:
    """A state.json whose only value is this outline of a tensor."""
    return f'{{"model": {{"!tensor": {tensor}}}}}'.encode()


def bytes_of(header, length=None):
    """A file with this header, of that length."""
    return (len(header) if length is None else length).to_bytes(8, "little") + header


STATES = [b"[1]", b"hello", state_of("7")]
STATES += [state_of('["x", "float33", [2], 1]'), state_of('["x", "float32", [Infinity], 1]')]
OFFSETS = ("7", "[-99, 7]", "[0, Infinity]", "[0, 8]")
PARTS = [b"", b"hello", *(bytes_of(header) for header in (b"hello", b"{}", b"[7]"))]
PARTS += [bytes_of(b"{}", 2**62), bytes_of(b"{}", 40)]
PARTS += [bytes_of(f'{{"x": {{"data_offsets": {each}}}}}'.encode()) for each in OFFSETS]
PARTS += [bytes_of(b'{"x": {"data_offsets": [0, 7]}}') + bytes(8)]


@pytest.mark.parametrize(
    ("state", "part"),
    [
        *((state, b"") for state in STATES),
        *((state_of('["x", "float32", [2], 1]'), part) for part in PARTS),
    ],
)
def test_a_checkpoint_that_the_kit_does_not_write_is_quarantined_unread(
    tmp_path, state, part, capsys
):
    context, replica = job_of(tmp_path), replica_of()
    save(context, replica, 6)
    manifest = Manifest(9, attempt=1, files={})
    files = {part_name(0): functools.partial(write, part), "state.json": state}
    commit.commit(
        context.run.dir.checkpoints, commit.PendingCheckpoint(manifest, files, lambda: None)
    )
    assert loaded(context, replica_of(seed=1)).global_step == 6
    assert "step-00000009 is damaged and now quarantined-step-00000009" in capsys.readouterr().out
    assert checkpoint_names(context.run.dir.checkpoints) == ["step-00000006"]


def test_a_superseded_attempt_reads_and_renames_no_checkpoint(tmp_path):
    context = job_of(tmp_path)
    save(context, replica_of(), 6)
    (context.run.dir.checkpoints / "step-00000006" / "rank-00000.safetensors").write_bytes(
        b"damaged"
    )
    context.run.dir.owner.write_text('{"job_id": "8", "attempt": 2}')
    with pytest.raises(Superseded):
        ReadAhead(context).wait()
    assert checkpoint_names(context.run.dir.checkpoints) == ["step-00000006"]


def test_an_owner_that_cannot_be_read_is_told_with_the_way_out(tmp_path):
    context = job_of(tmp_path / "run")
    shutil.rmtree(context.run.dir.path)
    context.run.dir.path.touch()
    with pytest.raises(StorageError, match="looking for a checkpoint in .*, then resume"):
        ReadAhead(context)
