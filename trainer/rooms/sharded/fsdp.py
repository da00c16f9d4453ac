"""FSDP2: each rank has its rows of every parameter, gradient and optimizer state.

Imported only where a run uses it: torch.distributed.tensor takes 0.6 s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from ...contract import Train
from ...errors import UserError
from ...process.context import DistributedContext
from ...strategy.sharding import Rows, Sharding
from . import blocks, fits
from .in_blocks import InBlocks
from .optimizer_rows import OptimizerRows, local

BROADCAST_BYTES = 64 * 2**20


class Fsdp(InBlocks):
    """The strategies "fsdp", over all ranks, and "hsdp", with copies of each shard.

    The ranks of a shard group are neighbours: with the default size those of one node.
    """

    evaluates_together = True

    def __init__(self, train: Train, place: DistributedContext, device: torch.device) -> None:
        super().__init__(train, place, device)
        fits.check_optimizer(train)
        self.sharding = Sharding(fits.num_shards(train, place), place.rank)
        self._optimized = OptimizerRows()
        self._syncs = True
        self._what = ""

    def wrap(self, module: nn.Module, is_overwritten: bool = False) -> nn.Module:
        """Shard each block, then the rest of the model, in place.

        All ranks begin with rank 0's weights, as under DDP. A model on the meta device gets no more
        memory than this rank's rows. Raises UserError for what this torch cannot do.
        """
        block_list = blocks.find(module, self._train.shard_modules)
        self._what = (
            f"{blocks.describe(block_list)} and the root, each" if block_list else "the whole model"
        )
        if self._train.offload_optimizer and self._device.type != "cuda":
            self._place.log("warning: train.offload_optimizer has no effect on a CPU")
        _broadcast([*module.parameters(), *module.buffers()])
        self._mesh = self._connect()
        group = self._mesh.get_group("shard")
        self.sharding = replace(self.sharding, group=group)
        for block in block_list:
            self._shard(block, self._train.reshard_after_forward)
        # Its backward pass begins where the forward pass has ended: with the root's parameters.
        self._shard(module, False)
        if self._train.find_unused_parameters and not self._reduces_unused(module):
            # Without it ranks exchange the gradients of different parameters, without an error.
            raise UserError(
                "train.find_unused_parameters needs torch 2.13 or newer with train.strategy "
                f"{self._train.strategy}, this is {torch.__version__}: update torch, or write "
                "strategy: ddp"
            )
        self.allocate(module, self._parameter_device, is_overwritten)
        self._wrapped = module
        return module

    def _reduces_unused(self, module: nn.Module) -> bool:
        """Let a parameter that this rank leaves out of a block take part with a gradient of 0.

        Returns whether this torch can: from 2.13 on.
        """
        assert isinstance(module, FSDPModule)
        if can := hasattr(module, "set_reduce_scatter_unused_params"):
            module.set_reduce_scatter_unused_params(True)
        return can

    @property
    def _is_offloaded(self) -> bool:
        return self._train.offload_optimizer and self._device.type == "cuda"

    @property
    def _parameter_device(self) -> torch.device:
        return torch.device("cpu") if self._is_offloaded else self._device

    def _connect(self) -> DeviceMesh:
        """Return the mesh of all ranks: [shards], or [copies, shards]."""
        world_size, num_shards = self._place.world_size, self.sharding.num_shards
        if num_shards == world_size:
            return init_device_mesh(self._device.type, (world_size,), mesh_dim_names=("shard",))
        return init_device_mesh(
            self._device.type,
            (world_size // num_shards, num_shards),
            mesh_dim_names=("replicate", "shard"),
        )

    def _shard(self, module: nn.Module, reshard_after_forward: bool) -> None:
        offload = CPUOffloadPolicy() if self._is_offloaded else OffloadPolicy()

        def shard(what: nn.Module | list[nn.Module], policy: MixedPrecisionPolicy) -> None:
            fully_shard(
                what,
                mesh=self._mesh,
                reshard_after_forward=reshard_after_forward,
                mp_policy=policy,
                offload_policy=offload,
            )

        if self._train.precision != "bf16":
            shard(module, MixedPrecisionPolicy())
            return
        # BatchNorm refuses weights and running means of two types.
        if norms := [each for each in module.modules() if _is_norm_to_shard(each)]:
            shard(norms, MixedPrecisionPolicy())
        shard(module, MixedPrecisionPolicy(torch.bfloat16, torch.float32))

    @contextmanager
    def accumulate(self, wrapped: nn.Module, is_last: bool) -> Iterator[None]:
        """Reduce the gradients in the last micro batch only; before, each rank keeps whole ones."""
        if is_last != self._syncs:
            assert isinstance(wrapped, FSDPModule)
            wrapped.set_requires_gradient_sync(is_last)
            self._syncs = is_last
        yield

    def begin_step(self, module: nn.Module) -> None:
        """Give all ranks the buffers of rank 0, as DDP does: BatchNorm's differ after a step."""
        _broadcast(list(module.buffers()))  # a forward pass may have put others in their place

    def gradients(self, parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
        """Return this rank's rows of the gradients."""
        return [local(each.grad) for each in parameters if each.grad is not None]

    def clip(self, parameters: Sequence[nn.Parameter], max_norm: float) -> None:
        """Scale the gradients by their global norm, with one all-reduce.

        torch's clip_grad_norm_ needs one for each parameter, and a group for tensors on the CPU
        where the gradients are offloaded.
        """
        gradients = self.gradients(parameters)
        square = torch.zeros((), dtype=torch.float64, device=self._device)
        if gradients:
            norms = torch.stack([each.double() for each in torch._foreach_norm(gradients)])
            square += norms.square().sum().to(self._device)
        dist.all_reduce(square, group=self._mesh.get_group("shard"))
        factor = (max_norm / (square.sqrt() + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor.to(gradient))

    def end_evaluation(self, module: nn.Module) -> None:
        """Free the root's parameters, which no backward pass frees after an evaluation."""
        assert isinstance(module, FSDPModule)
        module.reshard()

    def trained_parameters(self, module: nn.Module) -> list[tuple[str, nn.Parameter]]:
        """Return this rank's rows of the trained parameters."""
        return self._optimized.trained_parameters(module)

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Give the optimizer the gradients of its rows before each step.

        From now on ranks may leave out different parameters; the pass before finds those that no
        rank uses.
        """
        self._optimized.attach(optimizer)
        self._reduces_unused(self._wrapped)

    def part(self, value: torch.Tensor, owner: nn.Parameter | None = None) -> torch.Tensor | Rows:
        """Return the rows of a parameter of the model, or of the optimizer's state for it."""
        if owner is not None:
            return self._optimized.part(value, owner)
        return Rows(local(value), tuple(value.shape)) if isinstance(value, DTensor) else value

    def whole(self, rows: Rows) -> torch.Tensor:
        """Return the tensor of all ranks of the shard group."""
        sharding = self.sharding
        size = -(-rows.shape[0] // sharding.num_shards)
        # Rows that are offloaded are on the CPU, where NCCL has no collectives.
        padded = rows.local.new_zeros((size, *rows.shape[1:]), device=self._device)
        padded[: len(rows.local)] = rows.local.detach()
        parts = [torch.empty_like(padded) for _ in range(sharding.num_shards)]
        dist.all_gather(parts, padded, group=sharding.group)
        return torch.cat(parts)[: rows.shape[0]]

    def describe(self) -> str:
        """Return blocks, shards and copies."""
        count, world_size = self.sharding.num_shards, self._place.world_size
        copies = f", {world_size // count} copies of each" if count < world_size else ""
        return f"{self._train.strategy}: {self._what} in {count} shards{copies}"


def _is_norm_to_shard(module: nn.Module) -> bool:
    """Return whether a module has parameters and floating buffers of its own, as BatchNorm has.

    False for one that is sharded already.
    """
    if isinstance(module, FSDPModule):
        return False
    values = [each for each in module._buffers.values() if each is not None]
    is_floating = any(each.is_floating_point() for each in values)
    return is_floating and any(each is not None for each in module._parameters.values())


@torch.no_grad()
def _broadcast(tensors: Sequence[torch.Tensor]) -> None:
    """Copy rank 0's values to all ranks, those of a dtype at once, at most BROADCAST_BYTES."""
    present = [each for each in tensors if not each.is_meta and each.numel()]
    for dtype in dict.fromkeys(each.dtype for each in present):
        part: list[torch.Tensor] = []
        for each in (each for each in present if each.dtype == dtype):
            if part and sum(map(_num_bytes, [*part, each])) > BROADCAST_BYTES:
                _broadcast_flat(part)
                part = []
            part.append(each)
        _broadcast_flat(part)


def _broadcast_flat(tensors: list[torch.Tensor]) -> None:
    flat = torch.cat([each.reshape(-1) for each in tensors])
    dist.broadcast(flat, src=0)
    values = torch.split(flat, [each.numel() for each in tensors])
    torch._foreach_copy_(
        tensors, [value.view(each.shape) for value, each in zip(values, tensors, strict=True)]
    )


def _num_bytes(value: torch.Tensor) -> int:
    return value.numel() * value.element_size()
