"""A checkpoint leaves the kit: as safetensors in one or several files."""

import json
import weakref
from typing import Any

import pytest
import safetensors.torch
import torch

from slurm_job_kit.jobs.contract.checkpoint.names import checkpoint_names
from slurm_job_kit.trainer.checkpoint import outline
from slurm_job_kit.trainer.checkpoint.digest import weights_sha256
from slurm_job_kit.trainer.plugins.export import __main__ as export
from tests.core.checkpoint.conftest import trained as trained

pytestmark = pytest.mark.usefixtures("process_group")

FILE_BYTES = 40  # the tensors have 8 to 24 bytes each, 124 together
NUM_FILES = 4


@pytest.fixture
def small_files(monkeypatch):
    monkeypatch.setattr(export, "MAX_FILE_BYTES", FILE_BYTES)


def exported(run_dir, *words, step=9, status=0):
    saved = run_dir.checkpoints / f"step-{step:08}"
    assert export.main([str(saved), *map(str, words)]) == status


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


LAYOUT = [
    *(f"model-{number:05d}-of-{NUM_FILES:05d}.safetensors" for number in range(1, NUM_FILES + 1)),
    "model.safetensors.index.json",
]


def test_larger_weights_become_files_with_an_index(trained, small_files, tmp_path, capsys):
    run_dir, replica = trained
    (out := tmp_path / "out").mkdir()
    exported(run_dir, "--out", out)
    printed = capsys.readouterr()
    assert printed.out == f"{out}/model.safetensors.index.json\n"
    assert names_in(out) == LAYOUT
    index, own = json.loads((out / LAYOUT[-1]).read_text()), replica.module.state_dict()
    size = sum(value.nbytes for value in own.values())
    assert index["metadata"] == {
        "total_size": size,
        "format": "pt",
        "run_id": "trained",
        "global_step": "9",
        "weights_sha256": weights_sha256(replica),
    }
    tensors_read: dict[str, torch.Tensor] = {}
    for name in LAYOUT[:-1]:
        tensors = safetensors.torch.load_file(out / name)
        assert sum(value.nbytes for value in tensors.values()) <= FILE_BYTES
        assert {index["weight_map"][each] for each in tensors} == {name}
        with safetensors.safe_open(out / name, "pt") as file:
            assert file.metadata() == {"format": "pt", "run_id": "trained", "global_step": "9"}
        tensors_read |= tensors
    assert tensors_read.keys() == own.keys() == index["weight_map"].keys()
    assert all(torch.equal(value, own[name]) for name, value in tensors_read.items())


def test_an_export_reads_the_model_only_and_holds_one_file_of_it(trained, small_files, monkeypatch):
    run_dir, _ = trained
    really, names, held = outline.with_memory, list[str](), list[Any]()

    def with_memory(tree, parts):
        tensors = really(tree, parts)
        names.extend(each.name for each in tree.values())
        held.extend(weakref.ref(each) for each in tensors.values())
        alive = [each() for each in held]
        assert sum(each.nbytes for each in alive if each is not None) <= FILE_BYTES
        return tensors

    monkeypatch.setattr(outline, "with_memory", with_memory)
    exported(run_dir)
    assert len(names) == len(set(names)) == 9
    assert all(name.startswith("model") for name in names), names


def test_a_failed_export_leaves_no_index_and_one_that_is_there_is_not_replaced(
    trained, small_files, tmp_path, monkeypatch, capsys
):
    run_dir, _ = trained
    (out := tmp_path / "out").mkdir()
    really, count = safetensors.torch.save_file, []

    def save(*arguments):
        really(*arguments)
        count.append(1)
        if len(count) == NUM_FILES:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", save)
    exported(run_dir, "--out", out, status=1)
    assert LAYOUT[-1] not in names_in(out)
    exported(run_dir, "--out", out)
    assert names_in(out) == LAYOUT
    exported(run_dir, "--out", out, status=2)
    assert f"{out / LAYOUT[-1]} exists: delete those weights first" in capsys.readouterr().err


def test_an_export_of_a_finished_run_has_no_warning(trained, capsys):
    run_dir, _ = trained
    for status, is_warned in [("held", True), ("completed", False)]:
        run_dir.result.write_text(json.dumps({"status": status}))
        exported(run_dir, step=6)
        printed = capsys.readouterr()
        assert printed.out == f"{run_dir.path}/weights.safetensors\n"
        assert "after step 6: train_loss 0.8571\n" in printed.err
        assert ("not finished" in printed.err) == is_warned


def test_an_export_of_a_damaged_checkpoint_writes_nothing(trained, capsys):
    run_dir, _ = trained
    path = run_dir.checkpoints / "step-00000009" / "rank-00000.safetensors"
    *data, last = path.read_bytes()
    path.write_bytes(bytes([*data, last ^ 1]))  # of a tensor: size and header are well
    exported(run_dir, status=1)
    assert "step-00000009 is damaged: rank-00000.safetensors does not" in capsys.readouterr().err
    assert list(run_dir.path.glob("*safetensors*")) == [] and list(run_dir.path.glob(".*")) == []
    assert len(checkpoint_names(run_dir.checkpoints)) == 2
