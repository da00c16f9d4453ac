"""Data sets of images in files: CIFAR-10's binary version, and a folder for each class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from ....jobs.base import packages
from ....jobs.contract.problems import expand_path
from ...data.sources import Samples
from ...errors import UserError

CIFAR10_RECORD_BYTES = 1 + 3 * 32 * 32  # a label, then the red, green and blue plane
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff"}


def absolute(key: str, path: str) -> Path:
    """Return the absolute path of a key of train.dataset_args, with ~ and $VARIABLE expanded.

    Raises UserError for a relative path: ranks run in the frozen copy of the code.
    """
    try:
        expanded = Path(expand_path(path))
    except ValueError as error:
        raise UserError(f"train.dataset_args.{key}: {error} on this host") from None
    if not expanded.is_absolute():
        what = f"{path} is relative, but ranks run in the run's own copy of the code"
        raise UserError(f"train.dataset_args.{key}: {what}", f"write it in full: /data/{path}")
    return expanded


def cifar10(path: str) -> tuple[Samples, Samples]:
    """Return CIFAR-10, (train, test), from the folder of its "binary version".

    images: uint8 [N, 3, 32, 32]. Raises UserError where a file is missing or not complete.
    Source: https://www.cs.toronto.edu/~kriz/cifar.html, "Binary version".
    """
    folder = absolute("path", path)
    train = [folder / f"data_batch_{number}.bin" for number in range(1, 6)]
    return _cifar10_part(train), _cifar10_part([folder / "test_batch.bin"])


def _cifar10_part(files: list[Path]) -> Samples:
    records = torch.cat([_cifar10_records(file) for file in files])
    images = records[:, 1:].reshape(-1, 3, 32, 32)
    return Samples(images, records[:, 0].long(), 1 / 255, num_classes=10)


def _cifar10_records(file: Path) -> torch.Tensor:
    """Return the records of one file, uint8 [n, CIFAR10_RECORD_BYTES]."""
    try:
        values = np.fromfile(file, dtype=np.uint8)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        hint = "unpack cifar-10-binary.tar.gz, and name the folder that has data_batch_1.bin"
        what = f"train.dataset_args.path: {file}: {error.strerror}"
        raise UserError(what, hint) from error
    if len(values) == 0 or len(values) % CIFAR10_RECORD_BYTES:
        what = f"{len(values)} bytes, not a multiple of the records of {CIFAR10_RECORD_BYTES} bytes"
        hint = "it is incomplete, or not the binary version"
        raise UserError(f"train.dataset_args.path: {file} has {what}", hint)
    return torch.from_numpy(values.reshape(-1, CIFAR10_RECORD_BYTES))


def image_folder(path: str, size: int = 224) -> tuple[ImageFolder, ImageFolder]:
    """Return (train, held-out) images of PATH/train/CLASS/*.jpg and PATH/val/CLASS/*.jpg (or test).

    size: of the square images, in pixels. Files are read when a sample is needed. Raises UserError
    where a folder is missing or the two parts have different classes.
    """
    if without_pillow := packages.missing(["pillow"], "train.dataset"):
        raise without_pillow
    folder = absolute("path", path)
    train = folder / "train"
    held_out = next((folder / name for name in ("val", "test") if (folder / name).is_dir()), None)
    if not train.is_dir() or held_out is None:
        missing = train if held_out is not None else folder / "val"
        hint = f"images belong in {folder}/train/CLASS/ and {folder}/val/CLASS/ (or test)"
        raise UserError(f"train.dataset_args.path: there is no folder {missing}", hint)
    classes = [  # the position of a class is its label
        sorted(each.name for each in part.iterdir() if each.is_dir() and each.name[0] != ".")
        for part in (train, held_out)
    ]
    if classes[0] != classes[1]:
        differ = sorted({*classes[0]} ^ {*classes[1]})
        what = f"{train} and {held_out} have different classes, such as {differ[0]}"
        raise UserError(f"train.dataset_args.path: {what}", "both need a folder for each class")
    return ImageFolder(train, classes[0], size), ImageFolder(held_out, classes[0], size)


class ImageFolder:
    """Images uint8 [3, size, size] from a folder for each class.

    The shorter side is resized to `size`, then the centre is cut out.
    """

    def __init__(self, folder: Path, classes: Sequence[str], size: int) -> None:
        self.num_classes = len(classes)
        self._folder = folder
        self._size = size
        names, labels = [], []
        for label, name in enumerate(classes):
            shown = (each for each in os.listdir(folder / name) if each[0] != ".")
            files = sorted(each for each in shown if Path(each).suffix.lower() in SUFFIXES)
            if not files:
                raise UserError(f"train.dataset_args.path: there is no image in {folder / name}")
            names += [os.fsencode(f"{name}/{file}") for file in files]
            labels += [label] * len(files)
        # Arrays, because each worker would copy a list of a million names page by page: reading a
        # Python object writes its reference count.
        self._names = np.array(names)
        self._labels = np.array(labels)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Return (image uint8 [3, size, size], label); raises UserError for a damaged image."""
        pixels = _read(self._folder / os.fsdecode(self._names[index]), self._size)
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), int(self._labels[index])


def _read(file: Path, size: int) -> npt.NDArray[np.uint8]:
    """Return the centre of an image after resizing its shorter side, uint8 [size, size, 3]."""
    from PIL import Image  # here, because no other data set needs Pillow

    try:
        with Image.open(file) as image:
            image.draft("RGB", (size, size))  # decode a JPEG no larger than needed
            scale = size / min(image.size)
            width, height = (max(size, round(side * scale)) for side in image.size)
            left, top = (width - size) // 2, (height - size) // 2
            resized = image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
            # A copy, because torch needs writable memory.
            return np.array(resized.crop((left, top, left + size, top + size)))
    except (OSError, Image.DecompressionBombError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the file system, not of the image
        raise UserError(f"train.dataset_args.path: cannot read {file}: {error}") from error
