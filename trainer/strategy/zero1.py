"""ZeRO-1: each rank has the whole model, and the optimizer's state of its rows only."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.distributed as dist
from torch import nn

from ..contract import Train
from ..process.context import DistributedContext
from .ddp import Ddp
from .optimizer_rows import OptimizerRows
from .sharding import Rows, Sharding

BUCKET_BYTES = 64 * 2**20  # of all ranks together
# torch 2.13 renamed the function; it warns about the old name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass(frozen=True)
class _Piece:
    """Rows `first` to `last` of every rank's part of a parameter."""

    whole: torch.Tensor
    sharding: Sharding
    first: int
    last: int

    @property
    def numel(self) -> int:
        """The elements of a part that is not cut short by the end of the parameter."""
        return (self.last - self.first) * math.prod(self.whole.shape[1:])

    def own(self) -> torch.Tensor:
        """Return this rank's rows, which share the memory of the parameter."""
        begin, end = self.sharding.rows(len(self.whole))
        return self.whole[min(begin + self.first, end) : min(begin + self.last, end)]

    def copies(self, gathered: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield (elements, rows of the parameter that they belong in) for all ranks.

        gathered: [ranks, numel]. Two pairs however many ranks there are: those with all rows, and
        the one whose part the end of the parameter cuts short.
        """
        part = self.sharding.rows(len(self.whole), 0)[1]
        num_whole = len(self.whole) // part
        rows = torch.unflatten(self.whole[: num_whole * part], 0, (num_whole, part))
        rows = rows[:, self.first : self.last]
        yield gathered[:num_whole].view(rows.shape), rows
        rows = self.whole[num_whole * part :][self.first : self.last]
        if len(rows):
            yield gathered[num_whole, : rows.numel()].view(rows.shape), rows


class Zero1(Ddp):
    """The strategy "zero1": DDP for the gradients; the updated rows are gathered after a step."""

    def __init__(self, train: Train, place: DistributedContext, device: torch.device) -> None:
        super().__init__(train, place, device)
        self.sharding = Sharding(place.world_size, place.rank)
        self._optimized = OptimizerRows(self._rows)

    def trained_parameters(self, module: nn.Module) -> list[tuple[str, nn.Parameter]]:
        """Return this rank's rows of the trained parameters."""
        return self._optimized.trained_parameters(module)

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Give the optimizer the gradients of its rows, and gather all rows after each step."""
        buckets = [_Bucket(pieces, self.sharding.num_shards) for pieces in self._buckets()]

        def gather() -> None:
            for bucket in buckets:
                bucket.gather()

        self._optimized.attach(optimizer, gather)

    def part(self, value: torch.Tensor, owner: nn.Parameter | None = None) -> torch.Tensor | Rows:
        """Return a tensor of the optimizer's state with the shape of its rows as a part."""
        return value if owner is None else self._optimized.part(value, owner)

    def whole_shape(self, owner: nn.Parameter) -> tuple[int, ...] | None:
        """Return the shape of the parameter of the model to which the rows belong."""
        return self._optimized.whole_shape(owner)

    def describe(self) -> str:
        """Return what is divided."""
        return f"zero1: the optimizer's state in {self.sharding.num_shards} shards"

    def _rows(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's rows; all of a tensor without a dimension, which each rank updates."""
        if whole.ndim == 0:
            return whole
        first, last = self.sharding.rows(len(whole))
        return whole[first:last]

    def _buckets(self) -> Iterator[list[_Piece]]:
        """Yield the pieces to exchange together: of one dtype, at most BUCKET_BYTES."""
        wholes = [each.detach() for each in self._optimized.wholes() if each.ndim]
        wholes.sort(key=lambda whole: str(whole.dtype))
        for dtype, same in groupby(wholes, key=lambda whole: whole.dtype):
            limit = BUCKET_BYTES // (self.sharding.num_shards * dtype.itemsize)
            bucket: list[_Piece] = []
            for piece in (piece for whole in same for piece in self._pieces(whole, limit)):
                if bucket and sum(each.numel for each in bucket) + piece.numel > limit:
                    yield bucket
                    bucket = []
                bucket.append(piece)
            if bucket:  # no parameter without elements
                yield bucket

    def _pieces(self, whole: torch.Tensor, limit: int) -> Iterator[_Piece]:
        """Yield a parameter in pieces of at most `limit` elements of each rank, or of one row."""
        num_rows = self.sharding.rows(len(whole), 0)[1]
        step = max(1, limit // max(1, math.prod(whole.shape[1:])))
        for first in range(0, num_rows, step):
            yield _Piece(whole, self.sharding, first, min(first + step, num_rows))


class _Bucket:
    """The exchange of some pieces: each rank's rows, padded to equal parts."""

    def __init__(self, pieces: list[_Piece], num_ranks: int) -> None:
        self._pieces = pieces
        self._sizes = [piece.numel for piece in pieces]
        self._num_ranks = num_ranks
        self._like = pieces[0].whole

    def gather(self) -> None:
        """Copy every rank's rows into this rank's model."""
        own = self._like.new_zeros(sum(self._sizes))
        own_rows = [piece.own() for piece in self._pieces]
        parts = zip(torch.split(own, self._sizes), own_rows, strict=True)
        _copy([(rows, part[: rows.numel()].view(rows.shape)) for part, rows in parts])
        gathered = self._like.new_empty(self._num_ranks, len(own))
        _all_gather(gathered.view(-1), own)
        columns = zip(self._pieces, torch.split(gathered, self._sizes, dim=1), strict=True)
        _copy([pair for piece, part in columns for pair in piece.copies(part)])


def _copy(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy the first tensor of each pair into the second one."""
    sources, targets = zip(*pairs, strict=True)
    torch._foreach_copy_(targets, sources)
