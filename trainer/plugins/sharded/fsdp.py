"""FSDP2: each rank has its rows of every parameter, gradient and optimizer state.

Imported only where a run uses it: torch.distributed.tensor takes 0.6 s.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _get_default_group
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from ...contract import Train, quantity
from ...errors import UserError
from ...process.context import DistributedContext
from ...strategy.interface import Rows, Sharding
from . import blocks
from .in_blocks import InBlocks

BROADCAST_BYTES = 64 * 2**20
# They compute an update from a whole matrix or its norm.
MATRIX_OPTIMIZERS = ("Muon", "Adafactor", "LARS", "LAMB", "Lamb", "Shampoo", "SOAP")


class Fsdp(InBlocks):
    """The strategies "fsdp", over all ranks, and "hsdp", with copies of each shard.

    The ranks of a shard group are neighbours: with the default size those of one node.
    """

    evaluates_together = True

    def __init__(self, train: Train, place: DistributedContext, device: torch.device) -> None:
        super().__init__(train, place, device)
        if train.optimizer.partition(":")[2] in MATRIX_OPTIMIZERS:
            what = f"{train.optimizer} needs whole matrices, and each rank has rows of them"
            hint = "take train.strategy ddp, or an optimizer that treats each element alone"
            raise UserError(f"train.optimizer: {what}", hint)
        of_group = train.shard_size or place.local_world_size
        num_shards = of_group if train.strategy == "hsdp" else place.world_size
        if place.world_size % num_shards:
            what = f"{place.world_size} ranks cannot be divided into groups of {num_shards}"
            hint = "write a divisor of the number of ranks, or take fsdp"
            raise UserError(f"train.shard_size: {what}", hint)
        self.sharding = Sharding(num_shards, place.rank)
        # Of the trained parameters: name, whole, and this rank's rows. The rows are plain tensors
        # in the model's memory, so every optimizer works on them that treats each element alone,
        # and its fused kernels do, too: torch 2.13 has no fused SGD for a DTensor.
        self._trained: list[tuple[str, nn.Parameter, nn.Parameter]] = []
        self._shapes: dict[int, tuple[int, ...]] = {}  # of the wholes, by the id of their rows
        self._is_offloaded = train.offload_optimizer and device.type == "cuda"
        self._syncs = True

    def wrap(self, module: nn.Module, is_overwritten: bool = False) -> nn.Module:
        """Shard each block, then the rest of the model, in place.

        All ranks begin with rank 0's weights, as under DDP. A model on the meta device gets no more
        memory than this rank's rows. Raises UserError for what this torch cannot do.
        """
        block_list = blocks.find(module, self._train.shard_modules)
        classes = ", ".join(dict.fromkeys(type(block).__name__ for block in block_list))
        several = f"{quantity(len(block_list), 'block')} of {classes} and the root, each"
        what = several if block_list else "the whole model"
        # All ranks: each has created its own initial weights.
        _broadcast([*module.parameters(), *module.buffers()])
        count = self.sharding.num_shards
        sizes, names = (self._place.world_size // count, count), ("replicate", "shard")
        first = int(sizes[0] == 1)  # 1: the mesh has no copies
        copies = "" if first else f", {sizes[0]} copies of each"
        self._place.log(f"{self._train.strategy}: {what} in {count} shards{copies}")
        mesh = init_device_mesh(self._device.type, sizes[first:], mesh_dim_names=names[first:])
        self._mesh = mesh
        for block in block_list:
            self._shard(block, self._train.reshard_after_forward)
        # Its backward pass begins where the forward pass has ended: with the root's parameters.
        self._shard(module, False)
        if self._train.find_unused_parameters and not self._reduces_unused(module):
            # Without it ranks exchange the gradients of different parameters, without an error.
            what = f"with strategy {self._train.strategy} needs torch 2.13 or newer"
            what = f"train.find_unused_parameters {what}, this is {torch.__version__}"
            raise UserError(what, "update torch, or write strategy: ddp")
        device = torch.device("cpu") if self._is_offloaded else self._device
        self.allocate(module, device, is_overwritten)
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

    def _shard(self, module: nn.Module, reshard_after_forward: bool) -> None:
        offload = CPUOffloadPolicy() if self._is_offloaded else OffloadPolicy()

        def shard(what: nn.Module | list[nn.Module], policy: MixedPrecisionPolicy) -> None:
            both: Any = {"mp_policy": policy, "offload_policy": offload}
            fully_shard(what, mesh=self._mesh, reshard_after_forward=reshard_after_forward, **both)

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
        _broadcast(module.buffers())  # a forward pass may have put others in their place

    def gradients(self, parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
        return [_local(each.grad) for each in parameters if each.grad is not None]

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
        # The ranks that together have each row once.
        dist.all_reduce(square, group=self._mesh.get_group("shard"))
        factor = (max_norm / (square.sqrt() + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor.to(gradient))

    def end_evaluation(self, module: nn.Module) -> None:
        """Free the root's parameters, which no backward pass frees after an evaluation."""
        assert isinstance(module, FSDPModule)
        module.reshard()

    def trained_parameters(self, module: nn.Module) -> list[tuple[str, nn.Parameter]]:
        """Return this rank's rows of the trained parameters, each time the same ones."""
        if not self._trained:
            self._trained = [
                (name, whole, nn.Parameter(_local(whole.detach())))
                for name, whole in module.named_parameters()
                if whole.requires_grad
            ]
            self._shapes = {id(rows): tuple(whole.shape) for _, whole, rows in self._trained}
        return [(name, rows) for name, _, rows in self._trained]

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Give the optimizer the gradients of its rows before each step.

        From now on ranks may leave out different parameters; the pass before finds those that no
        rank uses.
        """

        def begin(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            for _, whole, rows in self._trained:
                rows.data = _local(whole.detach())  # a load may have replaced the memory
                rows.grad = None if whole.grad is None else _local(whole.grad)

        def end(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            for _, _, rows in self._trained:
                rows.grad = None

        optimizer.register_step_pre_hook(begin)
        optimizer.register_step_post_hook(end)
        self._reduces_unused(self._wrapped)

    def part(self, value: Any, owner: nn.Parameter | None = None) -> Any:
        """Return the rows of a parameter of the model, or of the optimizer's state for it.

        A tensor of that state is divided if it has the shape of the parameter's rows.
        """
        if owner is None:
            return Rows(_local(value), tuple(value.shape)) if isinstance(value, DTensor) else value
        shape = self._shapes.get(id(owner))
        is_like = getattr(value, "shape", None) == owner.shape
        return Rows(value, shape) if shape and is_like else value

    def whole(self, rows: Rows) -> torch.Tensor:
        """Return the whole tensor. All ranks of the shard group call it: each has some rows."""
        sharding = self.sharding
        size = -(-rows.shape[0] // sharding.num_shards)
        # Rows that are offloaded are on the CPU, where NCCL has no collectives.
        padded = rows.local.new_zeros((size, *rows.shape[1:]), device=self._device)
        padded[: len(rows.local)] = rows.local.detach()
        parts = [torch.empty_like(padded) for _ in range(sharding.num_shards)]
        dist.all_gather(parts, padded, group=self._mesh.get_group("shard"))
        return torch.cat(parts)[: rows.shape[0]]


@torch.no_grad()
def _local(value: torch.Tensor) -> torch.Tensor:
    """Return this rank's rows of a DTensor; they share its memory."""
    assert isinstance(value, DTensor)
    return value.to_local()


def _is_norm_to_shard(module: nn.Module) -> bool:
    """Return whether a module that is not sharded has its own parameters and floating buffers."""
    if isinstance(module, FSDPModule):
        return False
    values = [each for each in module._buffers.values() if each is not None]
    is_floating = any(each.is_floating_point() for each in values)
    return is_floating and any(each is not None for each in module._parameters.values())


def _broadcast(tensors: Iterable[torch.Tensor]) -> None:
    """Copy rank 0's values to all ranks, in buckets, as DDP does it."""
    present = [each.detach() for each in tensors if not each.is_meta and each.numel()]
    if present:
        dist._broadcast_coalesced(_get_default_group(), present, BROADCAST_BYTES, 0)
