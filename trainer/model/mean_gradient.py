"""Makes the gradient of a step the mean over all items of all ranks."""

import functools
from collections.abc import Sequence

import torch
import torch.distributed as dist

from ..errors import UserError
from .objectives import Sums


class MeanGradient:
    """The division of one optimizer step's losses by its number of items.

    DDP averages the gradients over the ranks. Where every batch has the same number of items, each
    loss is divided by it before its backward pass, and the result is exact. Other counts are known
    on all ranks only after the last forward pass. Then each loss is divided by the batch size, and
    `correct` multiplies the gradients by what is missing.
    """

    def __init__(self, num_batches: int, batch_size: int, fixed_items: int | None) -> None:
        """fixed_items: the number of items of every batch, None if it differs."""
        self._num_batches = num_batches
        self._batch_size = batch_size
        self._fixed_items = fixed_items
        self._num_items: torch.Tensor | None = None
        self._reduction: dist.Work | None = None

    def seed(self, sums: Sums, is_last: bool) -> torch.Tensor:
        """Return the gradient [] of the step's mean loss with respect to the loss of this batch.

        The backward pass begins with it. is_last: whether it is the last batch of the step.
        Raises: UserError where this batch has another number of items than `fixed_items`.
        """
        count, fixed, divisor = sums.num_items, self._fixed_items, self._batch_size
        if fixed is not None:
            if not isinstance(count, int) or count != fixed:
                what = f"train.objective returned num_items {fixed} for one batch and {count} for"
                hint = "return it as a tensor, which is added up over the batches and ranks"
                raise UserError(f"{what} another", hint)
            divisor = fixed
        else:
            if self._num_items is None:
                self._num_items = torch.zeros((), dtype=torch.float64, device=sums.loss.device)
            self._num_items += count if isinstance(count, int) else count.detach()
            if is_last:  # all ranks exchange the number during the backward pass
                self._reduction = dist.all_reduce(self._num_items, async_op=True)
        return _share(divisor, self._num_batches, sums.loss.dtype, sums.loss.device)

    def correct(self, gradients: Sequence[torch.Tensor]) -> None:
        """Multiply gradients, averaged over the ranks, up to the mean over all items."""
        if self._reduction is None or self._num_items is None:
            return
        self._reduction.wait()
        divided_by = self._batch_size * self._num_batches * dist.get_world_size()
        factor = divided_by / self._num_items.clamp(min=1)
        for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
            same = [gradient for gradient in gradients if gradient.dtype == dtype]
            torch._foreach_mul_(same, factor.to(same[0]))


@functools.lru_cache(maxsize=8)
def _share(
    divisor: int, num_batches: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return the gradient [] of loss / divisor / num_batches.

    In float32 for a loss in half precision: it is scaled before it gets the type of the loss.
    """
    if dtype in (torch.float16, torch.bfloat16):
        dtype = torch.float32
    one = torch.ones((), dtype=dtype, device=device)
    return one / num_batches / divisor
