"""Finds the blocks of a model: what is sharded, compiled or checkpointed as one unit.

The rule: of all nn.ModuleList and nn.Sequential with at least two children, which are all of one
class and have parameters, the longest one (the first of several) gives the class. Every module of
this class is a block, also outside of that list, but not one inside of another block.
`train.shard_modules` names the classes instead.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ...contract import Train
from ...errors import UserError


def set_up(module: nn.Module, train: Train) -> None:
    """Checkpoint activations and compile in place, as the spec says, before the sharding."""
    blocks = find(module, train.shard_modules)
    for block in blocks if train.activation_checkpointing else ():
        # Replaces `forward`, so no parameter changes its name.
        block.forward = _with_checkpoint(block, block.forward)
    # Between two blocks FSDP gathers parameters, which must not become part of a graph.
    if train.compile == "blocks" or (train.compile and blocks and train.strategy != "ddp"):
        compile_each(blocks)
    elif train.compile:
        compile_each([module])


def find(module: nn.Module, class_names: Sequence[str] = ()) -> list[nn.Module]:
    """Return the blocks of a model, in its order; none where no list has two children of one class.

    class_names: train.shard_modules. Raises UserError for a class that no module has.
    """
    kinds = _named(module, class_names) if class_names else _repeated_class(module)
    found, inner = list[nn.Module](), set[nn.Module]()
    for each in module.modules():  # a module comes before those inside of it
        if each is not module and type(each) in kinds and each not in inner:
            inner |= set(each.modules())
            found.append(each)
    return found


def _repeated_class(module: nn.Module) -> set[type[nn.Module]]:
    """Return the class of the children of the longest uniform list, if there is one."""
    longest: list[nn.Module] = []
    for each in module.modules():
        children = list(each.children())
        is_list = isinstance(each, (nn.ModuleList, nn.Sequential))
        is_of_one_class = is_list and len({type(child) for child in children}) == 1
        if is_of_one_class and len(children) > max(1, len(longest)):
            have_parameters = (any(True for _ in child.parameters()) for child in children)
            longest = children if all(have_parameters) else longest
    return {type(child) for child in longest[:1]}


def _named(module: nn.Module, class_names: Sequence[str]) -> set[type[nn.Module]]:
    kinds = {type(each).__name__: type(each) for each in module.modules() if each is not module}
    unknown = [name for name in class_names if name not in kinds]
    if unknown:
        what = f"train.shard_modules: the model has no {unknown[0]}"
        raise UserError(what, f"its classes are {', '.join(sorted(kinds))}")
    return {kinds[name] for name in class_names}


def _with_checkpoint(block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward that keeps its inputs only; the backward pass computes the rest again."""
    has_buffers = any(True for _ in block.buffers())

    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        # Compiled code changes buffers once by itself, and refuses contexts like these.
        if has_buffers and not torch.compiler.is_compiling():
            # Of the first forward pass, and of the second one.
            kwargs["context_fn"] = lambda: (nullcontext(), _copied_buffers(block))
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return checkpointed


@contextmanager
def _copied_buffers(block: nn.Module) -> Iterator[None]:
    """Let a forward pass change copies of the buffers: BatchNorm has counted this batch already."""
    kept = [
        (each, name, buffer)
        for each in block.modules()
        for name, buffer in each._buffers.items()
        if buffer is not None
    ]
    for each, name, buffer in kept:
        each._buffers[name] = buffer.clone()
    try:
        yield
    finally:
        for each, name, buffer in kept:
            each._buffers[name] = buffer


def compile_each(blocks: Sequence[nn.Module]) -> None:
    """Compile the forward of each block in place; blocks of the same shapes share their code.

    All blocks of a class count together for torch's limit of recompilations, beyond which it
    silently stops to compile. Each may need code for training, evaluation and a smaller last batch.
    """
    # For the whole process: torch.compile of torch 2.11 has no limit of its own.
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, 4 * len(blocks))
    for block in blocks:
        # torch.compile(block) would rename its parameters; block.compile() silently compiles
        # nothing of an nn.Sequential (torch 2.13).
        block.forward = torch.compile(block.forward)
