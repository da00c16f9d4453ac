"""The data sets of this plugin that are no tokens."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from slurm_job_kit.jobs.contract.spec import Train
from slurm_job_kit.trainer.data import data_set
from slurm_job_kit.trainer.data.sources import num_classes
from slurm_job_kit.trainer.errors import UserError


def parts(name: str, args: dict[str, Any]) -> tuple[Any, Any]:
    return data_set.create(Train(dataset=name, dataset_args=args), 0, 1)[:2]


def cifar_records(num, first_label):
    records = np.zeros((num, 3073), dtype=np.uint8)
    records[:, 0] = (np.arange(num) + first_label) % 10
    records[:, 1:1025], records[:, 1025:2049], records[:, 2049:] = 10, 20, 255
    records[:, 2] = np.arange(num)  # the second pixel of the first row, red
    return records


def make_cifar(folder):
    for number in range(1, 6):
        cifar_records(4, number).tofile(folder / f"data_batch_{number}.bin")
    cifar_records(3, 7).tofile(folder / "test_batch.bin")


def test_cifar10_is_read_from_its_own_binary_files(tmp_path, monkeypatch):
    make_cifar(tmp_path)
    monkeypatch.setenv("DATA", str(tmp_path))
    train, test = parts("cifar10", {"path": "$DATA"})
    assert (len(train), len(test), num_classes(train, test)) == (20, 3, 10)
    assert train.inputs.dtype == torch.uint8 and train.inputs.shape == (20, 3, 32, 32)
    assert test.labels.tolist() == [7, 8, 9]
    assert train.labels[:8].tolist() == [*range(1, 5), *range(2, 6)]
    images, _ = train.batch(torch.tensor([2]))
    assert images[0, :, 5, 5].tolist() == [10, 20, 255]
    assert images[0, 0, 0, 1].item() == 2


def test_missing_broken_or_relative_cifar10_files_are_user_errors_with_a_fix(tmp_path):
    with pytest.raises(UserError, match=r"data_batch_1.bin: No such file .*\n.*unpack cifar-10-b"):
        parts("cifar10", {"path": str(tmp_path)})
    make_cifar(tmp_path)
    with open(tmp_path / "test_batch.bin", "ab") as file:
        file.write(b"x")
    with pytest.raises(UserError, match=r"test_batch.bin has 9220 bytes, .* records of 3073"):
        parts("cifar10", {"path": str(tmp_path)})
    records = cifar_records(3, 0)
    records[1, 0] = 10
    records.tofile(tmp_path / "test_batch.bin")
    with pytest.raises(UserError, match="has the label 10, but labels go from 0 to .* is 9"):
        parts("cifar10", {"path": str(tmp_path)})
    with pytest.raises(UserError, match="path: data is relative, .*\n.* in full: /data/data"):
        parts("cifar10", {"path": "data"})


def make_images(folder, parts=("train", "val"), classes=("cat", "dog")):
    for part in parts:
        for label, name in enumerate(classes):
            (folder / part / name).mkdir(parents=True)
            for number, suffix in enumerate(("png", "JPEG", "jpg")):
                pixels = np.full((40, 60 + number, 3), 100 * label, dtype=np.uint8)
                pixels[:, :10] = 255  # off the centre
                Image.fromarray(pixels).save(folder / part / name / f"{number}.{suffix}")
            (folder / part / name / "notes.txt").write_text("no image")


def test_an_image_folder_gives_the_centre_of_each_image(tmp_path):
    make_images(tmp_path)
    train, test = parts("image_folder", {"path": str(tmp_path), "size": 20})
    assert (len(train), len(test), num_classes(train, test)) == (6, 6, 2)
    assert [train[index][1] for index in range(6)] == [0, 0, 0, 1, 1, 1]
    image, _ = train[3]
    assert image.dtype == torch.uint8 and image.shape == (3, 20, 20)
    assert image.float().mean().item() == pytest.approx(100, abs=3)
    bright, _ = parts("image_folder", {"path": str(tmp_path), "size": 80})
    assert bright[0][0].shape == (3, 80, 80)


def test_an_image_folder_that_does_not_fit_names_both_sides(tmp_path):
    with pytest.raises(UserError, match=r"no folder .*/val\n.* images belong in .*/train/CLASS/"):
        parts("image_folder", {"path": str(tmp_path)})
    make_images(tmp_path, parts=["train"])
    with pytest.raises(UserError, match=r"no folder .*/val"):
        parts("image_folder", {"path": str(tmp_path)})
    make_images(tmp_path, parts=["test"], classes=["cat", "cow", "dog"])
    with pytest.raises(UserError, match=r"/train and .*/test have different classes, such as cow"):
        parts("image_folder", {"path": str(tmp_path)})
    (tmp_path / "train" / "cow").mkdir()
    with pytest.raises(UserError, match=r"there is no image in .*/train/cow"):
        parts("image_folder", {"path": str(tmp_path)})


def test_a_broken_image_is_named(tmp_path):
    make_images(tmp_path)
    broken = tmp_path / "train" / "cat" / "0.png"
    broken.write_bytes(broken.read_bytes()[:60])
    train, _ = parts("image_folder", {"path": str(tmp_path)})
    with pytest.raises(UserError, match=r"cannot read .*/train/cat/0.png"):
        train[0]
