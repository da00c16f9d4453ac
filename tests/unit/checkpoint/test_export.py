"""A checkpoint leaves the kit: as safetensors in one or several files, and in torch's format."""

import json
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict_saver import save

from slurm_job_kit.jobs.checkpoint.names import checkpoint_names
from slurm_job_kit.trainer.checkpoint import dcp, export
from slurm_job_kit.trainer.checkpoint.checkpoints import Checkpoints
from slurm_job_kit.trainer.checkpoint.digest import weights_sha256
from slurm_job_kit.trainer.checkpoint.outline import StoredTensor
from slurm_job_kit.trainer.errors import UserError
from tests.unit.checkpoint.checkpoint_kit import (
    BATCHES,
    job_of,
    replica_of,
    state_at,
)

pytestmark = pytest.mark.usefixtures("process_group")

LIMIT_S = 120
FILE_BYTES = 40  # the tensors have 8 to 24 bytes each, 124 together
NUM_FILES = 4
SCRIPT = Path(__file__).with_name("plain_fsdp.py")


def adamw(parameters, lr):
    parameters = list(parameters)
    matrices = [each for each in parameters if each.ndim > 1]
    others = [each for each in parameters if each.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr)


@pytest.fixture
def run(tmp_path):
    """A run directory with one checkpoint, and its replica."""
    context, replica = job_of(tmp_path / "run"), replica_of(optimizer=adamw)
    checkpoints = Checkpoints(context, BATCHES)
    checkpoints.save(replica, state_at(6))
    checkpoints.finish(lambda: None)
    return context.run.dir, replica


@pytest.fixture
def small_files(monkeypatch):
    monkeypatch.setattr(export, "MAX_FILE_BYTES", FILE_BYTES)


def exported(run_dir, *words):
    assert export.main([str(run_dir.path), *map(str, words)]) == 0


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


LAYOUT = [
    *(f"model-{number:05d}-of-{NUM_FILES:05d}.safetensors" for number in range(1, NUM_FILES + 1)),
    "model.safetensors.index.json",
]


def test_larger_weights_become_files_with_an_index(run, small_files, tmp_path, capsys):
    run_dir, replica = run
    (out := tmp_path / "out").mkdir()
    exported(run_dir, "--out", out)
    printed = capsys.readouterr()
    assert printed.out == f"{out}/model.safetensors.index.json\n"
    assert f"in {NUM_FILES} files" in printed.err
    assert names_in(out) == LAYOUT
    index, own = json.loads((out / LAYOUT[-1]).read_text()), replica.module.state_dict()
    size = sum(value.nbytes for value in own.values())
    assert index["metadata"] == {
        "total_size": size,
        "format": "pt",
        "run_id": "run",
        "global_step": "6",
        "weights_sha256": weights_sha256(replica),
    }
    tensors_read: dict[str, torch.Tensor] = {}
    for name in LAYOUT[:-1]:
        tensors = safetensors.torch.load_file(out / name)
        assert sum(value.nbytes for value in tensors.values()) <= FILE_BYTES
        assert {index["weight_map"][each] for each in tensors} == {name}
        with safetensors.safe_open(out / name, "pt") as file:
            assert file.metadata() == {"format": "pt", "run_id": "run", "global_step": "6"}
        tensors_read |= tensors
    assert tensors_read.keys() == own.keys() == index["weight_map"].keys()
    assert all(torch.equal(value, own[name]) for name, value in tensors_read.items())


def test_a_tensor_larger_than_a_file_is_alone(run, monkeypatch, tmp_path):
    monkeypatch.setattr(export, "MAX_FILE_BYTES", 1)
    run_dir, replica = run
    exported(run_dir, "--out", tmp_path / "w.safetensors")
    places = json.loads((tmp_path / "w.safetensors.index.json").read_text())["weight_map"]
    assert len(set(places.values())) == len(places) == len(replica.module.state_dict())


def test_an_export_reads_the_model_only_and_holds_one_file_of_it(run, small_files, monkeypatch):
    run_dir, _ = run
    really, names = StoredTensor.read, []
    held: list[Any] = []

    def read(self, contents):
        tensor = really(self, contents)
        names.append(self.name)
        held.append(weakref.ref(tensor))
        alive = [each() for each in held]
        assert sum(each.nbytes for each in alive if each is not None) <= FILE_BYTES
        return tensor

    monkeypatch.setattr(StoredTensor, "read", read)
    exported(run_dir)
    assert len(names) == len(set(names)) == 9
    assert all(name.startswith("model") for name in names), names


def test_an_export_again_leaves_no_file_of_the_one_before(run, monkeypatch, tmp_path):
    run_dir, _ = run
    (out := tmp_path / "out").mkdir()
    (out / "config.json").write_text("{}")
    (out / "other-00001-of-00009.safetensors").write_text("")
    others = names_in(out)
    monkeypatch.setattr(export, "MAX_FILE_BYTES", FILE_BYTES)
    exported(run_dir, "--out", out)
    exported(run_dir, "--out", out)
    assert names_in(out) == sorted([*others, *LAYOUT])
    monkeypatch.setattr(export, "MAX_FILE_BYTES", 2 * FILE_BYTES)
    exported(run_dir, "--out", out)
    index = json.loads((out / LAYOUT[-1]).read_text())
    assert names_in(out) == sorted([*others, LAYOUT[-1], *set(index["weight_map"].values())])
    monkeypatch.undo()
    exported(run_dir, "--out", out)
    assert names_in(out) == sorted([*others, "model.safetensors"])
    monkeypatch.setattr(export, "MAX_FILE_BYTES", FILE_BYTES)
    exported(run_dir, "--out", out)
    assert names_in(out) == sorted([*others, *LAYOUT])


@pytest.mark.parametrize("is_first_export", [True, False])
def test_an_export_that_fails_late_leaves_what_was_there(
    run, small_files, tmp_path, monkeypatch, is_first_export
):
    run_dir, _ = run
    (out := tmp_path / "out").mkdir()
    if not is_first_export:
        exported(run_dir, "--out", out)
    before = {path: path.read_bytes() for path in out.iterdir()}
    really, count = safetensors.torch.save_file, []

    def save(*arguments):
        really(*arguments)
        count.append(1)
        if len(count) == NUM_FILES:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", save)
    assert export.main([str(run_dir.path), "--out", str(out)]) == 1
    assert {path: path.read_bytes() for path in out.iterdir()} == before


def test_the_index_is_the_last_file_that_gets_its_name(run, small_files, tmp_path, monkeypatch):
    run_dir, _ = run
    (out := tmp_path / "out").mkdir()
    exported(run_dir, "--out", out)
    really, order = os.replace, []

    def replace(source, target):
        order.append(Path(target).name)
        is_index_there = (out / LAYOUT[-1]).exists()
        assert not is_index_there, "a reader would take files of two exports"
        really(source, target)

    monkeypatch.setattr(os, "replace", replace)
    exported(run_dir, "--out", out)
    assert order[-1] == LAYOUT[-1] and sorted(order) == LAYOUT


def test_a_missing_directory_is_named_before_anything_is_read(run, tmp_path, capsys):
    run_dir, _ = run
    for more in ([], ["--dcp"]):
        out = tmp_path / "gone" / "w.safetensors"
        assert export.main([str(run_dir.path), "--out", str(out), *more]) == 2
        assert f"there is no directory {out.parent}" in capsys.readouterr().err


@pytest.mark.parametrize("metadata", ['{"total_size": 1}', "[]", None])
def test_the_files_of_another_model_stay(run, tmp_path, capsys, metadata):
    """A folder that was downloaded, for example."""
    run_dir, _ = run
    part = "model-00001-of-00030.safetensors"
    (tmp_path / part).write_text("weights")
    index = tmp_path / "model.safetensors.index.json"
    if metadata is not None:
        index.write_text(f'{{"metadata": {metadata}, "weight_map": {{"x": "{part}"}}}}')
    assert export.main([str(run_dir.path), "--out", str(tmp_path)]) == (2 if metadata else 0)
    assert (tmp_path / part).read_text() == "weights"
    if metadata:
        assert f"{index} was not written by an export" in capsys.readouterr().err


def test_an_export_is_of_the_checkpoint_that_is_meant(trained, tmp_path, capsys):
    run_dir, replica = trained
    out = tmp_path / "out.safetensors"
    for which, step in [("latest", "9"), ("best", "6"), ("step-00000006", "6")]:
        assert export.main([str(run_dir.path), "--checkpoint", which, "--out", str(out)]) == 0
        with safetensors.safe_open(out, "pt") as file:
            metadata = file.metadata()
        assert (metadata["global_step"], metadata["run_id"]) == (step, "trained")
    assert export.main([str(run_dir.checkpoints / "step-00000009"), "--out", str(out)]) == 0
    weights = safetensors.torch.load_file(out)
    assert torch.equal(weights["0.weight"], replica.module[0].weight)
    capsys.readouterr()
    assert export.main([str(run_dir.path), "--checkpoint", "step-00000007"]) == 2
    hint = "hint: it has step-00000009, step-00000006"
    assert f"no checkpoint step-00000007\n  {hint}" in capsys.readouterr().err
    (run_dir.checkpoints / "best").unlink()
    assert export.main([str(run_dir.path), "--checkpoint", "best"]) == 2
    assert f"trained has no checkpoint best\n  {hint}" in capsys.readouterr().err


def test_an_export_of_a_finished_run_has_no_warning(trained, capsys):
    run_dir, _ = trained
    for status, is_warned in [("held", True), ("completed", False)]:
        run_dir.result.write_text(json.dumps({"status": status}))
        assert export.main([str(run_dir.path), "--checkpoint", "best"]) == 0
        printed = capsys.readouterr().err
        assert ("not finished" in printed) == is_warned and "after step 6: train_loss" in printed


def test_an_export_of_a_damaged_checkpoint_writes_nothing(trained, capsys):
    run_dir, _ = trained
    path = run_dir.checkpoints / "step-00000009" / "rank-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert export.main([str(run_dir.path)]) == 1
    assert "step-00000009 is damaged: rank-00000.safetensors has" in capsys.readouterr().err
    assert list(run_dir.path.glob("*safetensors*")) == [] and list(run_dir.path.glob(".*")) == []
    assert len(checkpoint_names(run_dir.checkpoints)) == 2


def test_the_torch_format_needs_the_name_of_each_parameter(tmp_path):
    optimizer = {"param_groups": [{"params": [0, 1]}], "state": {}}
    with pytest.raises(UserError, match="does not name every parameter of the optimizer"):
        dcp.write({}, optimizer, ["0.weight", None], tmp_path / "out")
    assert names_in(tmp_path) == []


def state_of(replica):
    names = {id(each): name for name, each in replica.module.named_parameters()}
    return {names[id(each)]: values for each, values in replica.optimizer.state.items()}


def assert_same(found, replica):
    own = replica.module.state_dict()
    assert found["model"].keys() == own.keys()
    assert all(torch.equal(value, own[name]) for name, value in found["model"].items())
    state = state_of(replica)
    assert found["state"].keys() == state.keys()
    for name, values in found["state"].items():
        assert values.keys() == state[name].keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(value, state[name][key]) for key, value in values.items())


@pytest.mark.slow
def test_a_script_without_the_kit_loads_the_torch_format_into_fsdp2(run, tmp_path, capsys):
    run_dir, replica = run
    exported(run_dir, "--dcp")
    out = run_dir.path / "dcp"
    assert capsys.readouterr().out == f"{out}\n"
    command = [sys.executable, str(SCRIPT)]
    ranks = [
        subprocess.Popen([*command, str(rank), "2", str(out), str(tmp_path)]) for rank in range(2)
    ]
    try:
        assert [rank.wait(LIMIT_S) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for values in torch.load(tmp_path / "found.pt"):
        assert_same(values, replica)
        assert values["weight_decay"] == [0.1, 0.0]


def test_torchs_own_converter_reads_the_torch_format(run, tmp_path):
    run_dir, replica = run
    exported(run_dir, "--dcp", "--out", tmp_path / "out")
    exported(run_dir, "--dcp", "--out", tmp_path / "out")  # again, over its own
    assert names_in(tmp_path) == ["out", "run"]
    dcp_to_torch_save(tmp_path / "out", tmp_path / "all.pt")
    values = torch.load(tmp_path / "all.pt")
    assert_same({"model": values["model"], "state": values["optim"]["state"]}, replica)


def test_the_torch_format_overwrites_nothing_but_itself(run, tmp_path, capsys):
    run_dir, _ = run
    (folder := tmp_path / "folder").mkdir()
    (folder / "mine").write_text("")
    for out in (folder, folder / "mine"):
        assert export.main([str(run_dir.path), "--dcp", "--out", str(out)]) == 2
        assert f"{out} holds something else" in capsys.readouterr().err
    assert names_in(folder) == ["mine"]
    part = run_dir.checkpoints / "step-00000006" / "rank-00000.safetensors"
    part.write_bytes(part.read_bytes()[:-1])
    assert export.main([str(run_dir.path), "--dcp"]) == 1
    assert "step-00000006 is damaged" in capsys.readouterr().err
    assert not [name for name in names_in(run_dir.path) if "dcp" in name]


def test_a_torch_format_that_fails_leaves_the_one_before(run, monkeypatch):
    run_dir, _ = run
    exported(run_dir, "--dcp")
    out, names = run_dir.path / "dcp", names_in(run_dir.path)
    before = {path: path.read_bytes() for path in out.iterdir()}
    really = save

    def save_and_fail(*arguments, **more):
        really(*arguments, **more)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dcp, "save", save_and_fail)
    assert export.main([str(run_dir.path), "--dcp"]) == 1
    assert names_in(run_dir.path) == names
    assert {path: path.read_bytes() for path in out.iterdir()} == before
