"""Initial weights by the parameter's name and the seed, for a model too large to create whole.

The code of the model runs once without memory. Later each tensor gets its value on its own. What
the model draws at random comes from a generator that is seeded by the name of the first tensor that
depends on it: so the values depend neither on the order nor on how the ranks divide the model.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.weak import WeakIdKeyDictionary

from .. import seeds
from ..strategy.interface import Strategy
from ..strategy.sharding import Rows
from ..user_code import is_of_machine
from .recording import Recorder, refusal

# A constant, because the weights depend on the choice: not on the machine or the number of ranks.
AUTO_LIMIT_BYTES = 16 * 2**30
_REGISTERED = ("_parameters", "_buffers", "_modules")


def build(
    init: str, create: Callable[[], nn.Module], seed: int, limit: int = AUTO_LIMIT_BYTES
) -> tuple[nn.Module, RecordedModel | None]:
    """Return the model, created as `train.init` says: whole, or recorded and without memory.

    auto: whole, unless `create` makes parameters of more than `limit` bytes.
    """
    if init != "by_name":
        try:
            with _limit_bytes(limit) if init == "auto" else nullcontext():
                return create(), None
        except _TooLarge:
            pass  # the parameters that exist by now are freed with the traceback
    recorded = record(create, seed)
    return recorded.module, recorded


def record(create: Callable[[], nn.Module], seed: int) -> RecordedModel:
    """Run the code of a model without memory; its weights depend on `seed` and their names.

    Raises UserError where the code needs values that are not known without the weights.
    """
    seeds.seed_all(seeds.mix(seeds.WEIGHTS, seed))  # for code that draws from Python's or NumPy's
    recorder = Recorder()
    try:
        with recorder.active():
            module = create()
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        if not re.search("meta|storage", str(error), re.IGNORECASE):
            raise  # a mistake in the model's code
        raise refusal(error) from error
    return RecordedModel(module, recorder, seed)


class RecordedModel:
    """A model on the meta device, and the initial values of its tensors by name."""

    def __init__(self, module: nn.Module, recorder: Recorder, seed: int) -> None:
        self.module = module
        self._recorder = recorder
        self._views = {
            name: recorder.view(recorder.on_meta(each)) for name, each in _named_tensors(module)
        }
        self._seed_of: dict[int, int] = {}
        for name, view in self._views.items():
            key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
            numbers = [
                each for each in recorder.history(view) if recorder.operations[each].is_random
            ]
            for index, number in enumerate(numbers):
                self._seed_of.setdefault(number, seeds.mix(seeds.WEIGHTS, seed, key, index))

    def value(self, name: str) -> Tensor:
        """Return the whole initial value of a parameter, a buffer or another tensor, on the CPU.

        Raises UserError where it cannot be computed.
        """
        try:
            with torch.random.fork_rng(devices=[]):
                return self._recorder.replay(self._views[name], self._seed_of)
        except RuntimeError as error:
            if is_of_machine(error):
                raise
            raise refusal(f"the initial value of {name}: {error}") from error


def fill(
    module: nn.Module,
    recorded: RecordedModel,
    strategy: Strategy,
    device: torch.device,
    will_load: bool = False,
) -> None:
    """Give a recorded model memory on the device and this rank's part of the initial values.

    module: the recorded one, divided by the strategy or not.
    will_load: leave the parameters undefined, because a checkpoint has them. It has not all of the
        rest: buffers that are not persistent, and tensors that are plain attributes.
    """
    _allocate(module, strategy.parameter_device(device), device)
    parameters = () if will_load else module.named_parameters()
    for name, tensor in (*parameters, *module.named_buffers()):
        part = strategy.part(tensor.detach())
        if isinstance(part, Rows):
            first, end = strategy.sharding.rows(part.shape[0])
            part.local.copy_(recorded.value(name)[first:end])
        else:
            part.copy_(recorded.value(name))
    for owner, key, name in list(_attributes(module)):
        leaves, structure = tree_flatten(vars(owner)[key])
        for index, leaf in enumerate(leaves):
            if isinstance(leaf, nn.Parameter) and leaf.is_meta:
                raise refusal(f"the attribute {name} refers to a parameter that is replaced")
            if isinstance(leaf, Tensor) and leaf.is_meta:
                leaves[index] = recorded.value(f"{name}.{index}")
        vars(owner)[key] = tree_unflatten(leaves, structure)


def _allocate(module: nn.Module, device: torch.device, of_buffers: torch.device) -> None:
    """Move a model from the meta device. A parameter in two places stays one."""
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    try:
        torch.__future__.set_swap_module_params_on_conversion(True)
        module.to_empty(device=device)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)
    for owner in module.modules() if device != of_buffers else ():
        for key, buffer in owner._buffers.items():
            if buffer is not None:
                owner._buffers[key] = torch.empty_like(buffer, device=of_buffers)


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a model, a shared one by each of its names."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
    for owner, key, name in _attributes(module):
        for index, leaf in enumerate(tree_leaves(vars(owner)[key])):
            if isinstance(leaf, Tensor) and not isinstance(leaf, nn.Parameter):
                yield f"{name}.{index}", leaf


def _attributes(module: nn.Module) -> Iterator[tuple[nn.Module, str, str]]:
    """Yield each plain attribute that has tensors: its owner, its key and its name."""
    for path, owner in module.named_modules():
        for key, content in vars(owner).items():
            if key not in _REGISTERED and any(isinstance(x, Tensor) for x in tree_leaves(content)):
                yield owner, key, f"{path}.{key}".lstrip(".")


class _TooLarge(BaseException):
    """No Exception, because the model's code must not catch it."""


@contextmanager
def _limit_bytes(limit: int) -> Iterator[None]:
    """Raise _TooLarge as soon as the modules of the block got parameters of more bytes."""
    seen = WeakIdKeyDictionary()
    total = 0

    def count(module: nn.Module, name: str, added: nn.Module | nn.Parameter | None) -> None:
        nonlocal total
        if added is None:  # a submodule that the code sets to None
            return
        # Those of a copied module were never registered one by one.
        for each in added.parameters() if isinstance(added, nn.Module) else (added,):
            if each not in seen:
                seen[each] = None
                total += each.nbytes
        if total > limit:
            raise _TooLarge

    handles = (
        hooks.register_module_parameter_registration_hook(count),
        hooks.register_module_module_registration_hook(count),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
