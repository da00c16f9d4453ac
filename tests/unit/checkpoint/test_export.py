"""A checkpoint leaves the kit: as safetensors in one or several files."""

import json
import os
import weakref
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from slurm_job_kit.trainer.checkpoint import export
from slurm_job_kit.trainer.checkpoint.checkpoints import Checkpoints
from slurm_job_kit.trainer.checkpoint.digest import weights_sha256
from slurm_job_kit.trainer.checkpoint.outline import StoredTensor
from slurm_job_kit.trainer.storage import commit
from tests.unit.checkpoint.test_checkpoint_state import (
    BATCHES,
    job_of,
    replica_of,
    saved_by_torch,
    saved_values,
    state_at,
    state_pt,
)

pytestmark = pytest.mark.usefixtures("process_group")

FILE_BYTES = 40  # the tensors have 8 to 24 bytes each, 124 together
NUM_FILES = 4


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
    found: dict[str, torch.Tensor] = {}
    for name in LAYOUT[:-1]:
        tensors = safetensors.torch.load_file(out / name)
        assert sum(value.nbytes for value in tensors.values()) <= FILE_BYTES
        assert {index["weight_map"][each] for each in tensors} == {name}
        with safetensors.safe_open(out / name, "pt") as file:
            assert file.metadata() == {"format": "pt", "run_id": "run", "global_step": "6"}
        found |= tensors
    assert found.keys() == own.keys() == index["weight_map"].keys()
    assert all(torch.equal(value, own[name]) for name, value in found.items())


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
    really, count = export._save, []

    def save(*arguments):
        really(*arguments)
        count.append(1)
        if len(count) == NUM_FILES:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "_save", save)
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
    out = tmp_path / "gone" / "w.safetensors"
    assert export.main([str(run_dir.path), "--out", str(out)]) == 2
    assert f"there is no directory {out.parent}" in capsys.readouterr().err


@pytest.fixture
def of_older_kit(tmp_path):
    """A run directory with a checkpoint of the format with state.pt, and its replica."""
    context, replica = job_of(tmp_path / "older"), replica_of()
    values = saved_values(replica, windows=torch.ones(1, 3, dtype=torch.float64))
    commit.commit(context.run.dir.checkpoints, state_pt(9, saved_by_torch(values)))
    return context.run.dir, replica


def test_a_checkpoint_of_the_format_before_is_exported(of_older_kit, small_files, tmp_path):
    run_dir, replica = of_older_kit
    (out := tmp_path / "out").mkdir()
    exported(run_dir, "--out", out)
    index = json.loads((out / LAYOUT[-1]).read_text())
    assert index["metadata"]["weights_sha256"] == weights_sha256(replica)
