"""Initial weights of a model that is too large for the memory of each rank.

Its parameters are created on the meta device, without memory. Later each module gets its initial
weights on its own, from a generator that is seeded by the module's name: so the values do not
depend on how the ranks divide the model.
"""

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.utils.weak import WeakIdKeyDictionary

from ... import seeds
from ...errors import UserError
from ...strategy.interface import Rows, Strategy

# A constant, because the weights depend on the choice: not on the machine or the number of ranks.
LIMIT_BYTES = 16 * 2**30


class _TooLarge(BaseException):
    """No Exception, because the model's code must not catch it."""


def build(create: Callable[[], nn.Module], limit: int | None = None) -> tuple[nn.Module, bool]:
    """Return the model, and whether its parameters are on the meta device: above `limit` bytes."""
    limit = LIMIT_BYTES if limit is None else limit
    seen, total = WeakIdKeyDictionary(), 0

    def count(module: nn.Module, name: str, added: nn.Module | nn.Parameter | None) -> None:
        nonlocal total
        # Those of a copied module were never registered one by one.
        for each in added.parameters() if isinstance(added, nn.Module) else (added,):
            if each is not None and each not in seen:
                seen[each] = None
                total += each.nbytes
        if total > limit:
            raise _TooLarge

    def to_meta(module: nn.Module, name: str, added: nn.Parameter | None) -> nn.Parameter | None:
        if added is None or added.is_meta:
            return added
        return nn.Parameter(added.to("meta"), added.requires_grad)

    try:
        with (
            hooks.register_module_parameter_registration_hook(count),
            hooks.register_module_module_registration_hook(count),
        ):
            return create(), False
    except _TooLarge:
        pass  # the parameters that exist by now are freed with the traceback
    # torch's annotation leaves out that the result of the hook replaces the parameter.
    with hooks.register_module_parameter_registration_hook(to_meta):  # type: ignore[arg-type]
        return create(), True


def allocate(module: nn.Module, device: torch.device) -> None:
    """Give the parameters of a model memory on the device; its buffers stay as they are."""
    buffers = [(owner, dict(owner._buffers)) for owner in module.modules()]
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    try:
        # So a parameter in two places stays one.
        torch.__future__.set_swap_module_params_on_conversion(True)
        module.to_empty(device=device)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)
    for owner, own in buffers:
        owner._buffers.update(own)


def fill(module: nn.Module, strategy: Strategy, seed: int) -> None:
    """Give each parameter this rank's part of its initial value; one whole module at a time.

    A module writes its parameters in `reset_parameters`, or the model does in
    `_init_weights(module)`, which is called after it.
    Raises: UserError for a parameter that neither writes whole.
    """
    done: set[int] = set()  # a parameter in two places keeps the value of the first
    for name, owner in module.named_modules():
        own = {key: each for key, each in owner._parameters.items() if each is not None}
        if all(id(each) in done for each in own.values()):
            continue
        digest = hashlib.sha256(name.encode()).digest()
        torch.manual_seed(seeds.mix(seeds.WEIGHTS, seed, int.from_bytes(digest[:8])))
        for key, value in _initial_values(owner, own, module).items():
            if id(own[key]) in done:
                continue
            if value.isnan().any():
                what = f"{name}.{key}".lstrip(".") + " has an element whose initial value nothing "
                hint = "a method reset_parameters(), or the model a method _init_weights(module)"
                hint = f"above {LIMIT_BYTES / 2**30:.0f} GiB each module needs {hint}"
                raise UserError(f"train.model: {what}writes", hint)
            part = strategy.part(own[key].detach())
            if isinstance(part, Rows):
                first, end = strategy.sharding.rows(part.shape[0])
                part.local.copy_(value[first:end])
            else:
                part.copy_(value)
            done.add(id(own[key]))


def _initial_values(
    owner: nn.Module, own: dict[str, nn.Parameter], model: nn.Module
) -> dict[str, Tensor]:
    """Return the whole parameters of one module on the CPU; NaN where its code writes none."""
    try:
        for key, each in own.items():
            empty = torch.full(each.shape, torch.nan, dtype=each.dtype)
            owner._parameters[key] = nn.Parameter(empty, each.requires_grad)
        with torch.no_grad():
            if callable(reset := getattr(owner, "reset_parameters", None)):
                reset()
            if callable(init_weights := getattr(model, "_init_weights", None)):
                init_weights(owner)
        return {key: owner._parameters[key].detach() for key in own}  # type: ignore[union-attr]
    finally:
        owner._parameters.update(own)
