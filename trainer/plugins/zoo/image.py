"""The built-in transform of whole batches of images on the device."""

from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from ...data.sources import BYTE_SCALE
from ...errors import UserError
from ...seeds import SampleRandom


class Image:
    """Random crop with zero padding, random flip and normalisation of images [n, C, H, W].

    images: float32, or uint8 straight from the data set. Moving bytes costs a quarter of moving
    float32, and conversion and normalisation are then one pass. Returns float32.
    """

    takes_bytes = True

    def __init__(
        self,
        crop_padding: int = 0,
        flip: bool = False,
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
    ) -> None:
        """crop_padding: in pixels.

        mean, std: one number for each channel, in the units of the inputs (uint8: 0 to 1).
        """
        self._padding = crop_padding
        self._flip = flip
        if len(mean) != len(std):
            count = f"mean has {len(mean)} numbers, but std has {len(std)}"
            raise UserError(f"train.transform_args: {count}: one for each channel")
        # One multiplication and one addition: (x - mean) / std = x * scale + shift.
        self._normalises = len(std) > 0
        scales = [1 / value for value in std] or [1.0]
        shifts = [-m * s for m, s in zip(mean, scales, strict=False)] or [0.0]
        self._scale = torch.tensor(scales).reshape(-1, 1, 1)
        self._shift = torch.tensor(shifts).reshape(-1, 1, 1)

    def __call__(self, images: torch.Tensor, random: SampleRandom | None) -> torch.Tensor:
        """Return the images float32 [n, C, H, W]; without `random`, only normalised."""
        self._check(images)
        if random is not None and (self._padding or self._flip):
            images = self._cropped(images, random.uniform(3))
        is_bytes = images.dtype == torch.uint8
        if not (is_bytes or self._normalises):
            return images
        if self._scale.device != images.device:
            self._scale = self._scale.to(images.device)
            self._shift = self._shift.to(images.device)
        if is_bytes:
            return images.float().mul_(self._scale * BYTE_SCALE).add_(self._shift)
        return (images * self._scale).add_(self._shift)

    def _check(self, images: torch.Tensor) -> None:
        """Raise UserError unless the inputs are images with as many channels as mean and std."""
        if images.ndim != 4:
            shape = tuple(images.shape[1:])
            what = f"train.transform is image, but train.dataset returns inputs of shape {shape}"
            raise UserError(what, "it needs images of shape (C, H, W)")
        if self._normalises and len(self._scale) != images.shape[1]:
            what = f"train.transform_args: mean and std have {len(self._scale)} numbers, but the "
            what += f"images of train.dataset have {images.shape[1]} channels"
            raise UserError(what, "write one number for each channel")

    def _cropped(self, images: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return each image moved by up to the padding in both directions, and flipped or not.

        numbers: float32 [n, 3]: the row offset, the column offset and the flip, from 0 to 1.
        """
        n, channels, height, width = images.shape
        padding = self._padding
        offsets = (numbers[:, :2] * (2 * padding + 1)).long()
        device = images.device
        rows = offsets[:, :1] + torch.arange(height, device=device)
        columns = torch.arange(width, device=device).expand(n, width)
        if self._flip:
            columns = torch.where(numbers[:, 2:] < 0.5, width - 1 - columns, columns)
        columns = offsets[:, 1:2] + columns
        if padding:
            images = pad(images, (padding, padding, padding, padding))
        pixels = rows.unsqueeze(2) * (width + 2 * padding) + columns.unsqueeze(1)
        pixels = pixels.reshape(n, 1, height * width).expand(n, channels, height * width)
        return images.flatten(2).gather(2, pixels).reshape(n, channels, height, width)
