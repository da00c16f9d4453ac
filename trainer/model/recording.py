"""Records what the code of a model does to tensors, without memory, and does it later for one.

While a `Recorder` is active, all tensors are on torch's meta device. Each operator that writes to a
tensor is recorded. `replay` runs on the CPU those that one tensor depends on.

A call of each module's `reset_parameters` would be simpler, but it knows nothing of what a model's
code does to its modules. Of 37 models 5 had the right weights then, 20 had others without an error.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from ..errors import UserError

# Operators that leave nothing of what was in their first argument. Most weights are drawn twice, by
# torch's own module and then by the model's code; only the second draw is repeated.
_OVERWRITE = {f"aten::{name}_" for name in ("normal", "uniform", "zero", "fill", "copy")}
_READ_VALUES = {Tensor.tolist, Tensor.numpy, Tensor.__array__}
# Code that asks must not notice: nn.init.orthogonal_ leaves a tensor on the meta device as it is.
_AS_ON_THE_CPU: dict[Any, object] = {
    Tensor.is_meta.__get__: False,  # type: ignore[attr-defined]
    Tensor.is_cpu.__get__: True,  # type: ignore[attr-defined]
    Tensor.device.__get__: torch.device("cpu"),
}


def refusal(reason: object) -> UserError:
    """Return the error for a model that cannot be created by name."""
    return UserError(
        f"train.init: by_name: {reason}\n"
        "  hint: set train.init to whole; each rank then creates all weights in its memory"
    )


@dataclass(eq=False)
class Storage:
    """The memory of one or more tensors, all zeros at first.

    So memory which nothing writes to is the same everywhere.

    kept: torch's own; kept, so that torch does not use its address for another one.
    constant: content that comes from outside, such as from a list of numbers.
    writers: the numbers of the operations that write to it.
    """

    kept: torch.UntypedStorage
    constant: Tensor | None = None
    writers: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class View:
    """Where the elements of a tensor are."""

    storage: Storage
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Operation:
    """A call that wrote to tensors; in its arguments and outputs a `View` stands for a tensor.

    needs: the storages whose content it depends on.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[View]
    needs: set[Storage]
    is_random: bool


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps all tensors on the meta device and records what writes to them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []
        self._storages: dict[int, Storage] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Record what the block does."""
        # It draws until all values are within the bounds, so it is recorded as one operation.
        truncated = nn.init._no_grad_trunc_normal_
        try:
            nn.init._no_grad_trunc_normal_ = self._as_one(truncated)
            with _AsOnTheCpu(self), self, torch.no_grad():
                yield
        finally:
            nn.init._no_grad_trunc_normal_ = truncated

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            if torch.Tag.data_dependent_output not in func.tags:  # `item` has it
                try:
                    return self._call(func, args, dict(kwargs or {}))
                except NotImplementedError:  # such as `nonzero`, whose shape depends on values
                    if func._schema.is_mutable:
                        raise
            args, kwargs = tree_map_only(Tensor, self.now, (args, kwargs or {}))
            return tree_map_only(Tensor, self.on_meta, func(*args, **kwargs))

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator without memory, and record it if it writes."""
        declared = func._schema.arguments
        values = {each.name: value for each, value in zip(declared, args, strict=False)} | kwargs
        changed = [values.get(x.name) for x in declared if x.alias_info and x.alias_info.is_write]
        if any(isinstance(each, torch.Generator) for each in tree_leaves(kwargs)):
            raise refusal(f"{func} has a generator of its own")
        if any(each.name == "device" for each in declared):
            kwargs["device"] = torch.device("meta")
            kwargs.pop("pin_memory", None)
        args, kwargs = tree_map_only(Tensor, self.on_meta, (args, kwargs))
        seen_args, seen_kwargs = tree_map_only(Tensor, self.view, (args, kwargs))
        written = {self.view(each).storage for each in _tensors(changed)}
        result = func(*args, **kwargs)
        outputs = [self._register(each) for each in _tensors(result)]
        created = {each.storage for each in outputs} - _storages((seen_args, seen_kwargs))
        if written or (created and "empty" not in func._schema.name):
            if "device" in seen_kwargs:
                seen_kwargs["device"] = torch.device("cpu")
            needs = _needs(func._schema.name, (seen_args, seen_kwargs))
            is_random = torch.Tag.nondeterministic_seeded in func.tags
            operation = Operation(func, seen_args, seen_kwargs, outputs, needs, is_random)
            self._add(operation, written | created)
        return result

    def _as_one(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return what records a function that fills a tensor at random, instead of calling it."""

        def recorded(tensor: Tensor, *args: float, generator: object = None) -> Tensor:
            if generator is not None:
                raise refusal(f"{function.__name__} has a generator of its own")
            with torch._C.DisableTorchFunction():
                target = self.view(tensor)
            needs = _needs("aten::normal_", target)
            operation = Operation(function, (target, *args), {}, [], needs, is_random=True)
            self._add(operation, {target.storage})
            return tensor

        return recorded

    def _add(self, operation: Operation, written: set[Storage]) -> None:
        for storage in written:
            storage.writers.append(len(self.operations))
        self.operations.append(operation)

    def view(self, tensor: Tensor) -> View:
        """Return where the elements of a tensor are. Raises UserError if it was not recorded."""
        if tensor.untyped_storage()._cdata not in self._storages:
            shape = tuple(tensor.shape)
            raise refusal(f"a tensor of shape {shape} does not come from the model's code")
        return self._register(tensor)

    def _register(self, tensor: Tensor) -> View:
        if tensor.is_conj() or tensor.is_neg():
            raise refusal("the model's code has a conjugate view")
        kept = tensor.untyped_storage()
        return _described(tensor, self._storages.setdefault(kept._cdata, Storage(kept)))

    def on_meta(self, tensor: Tensor) -> Tensor:
        """Return the tensor itself, or for one with values a constant that has them."""
        if tensor.is_meta:
            return tensor
        constant = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        recorded = torch.empty(constant.shape, dtype=constant.dtype, device="meta")
        self._register(recorded).storage.constant = constant
        return recorded

    def now(self, tensor: Tensor) -> Tensor:
        """Return a tensor with its values while the code runs. Raises UserError for random ones."""
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            if not tensor.is_meta:
                return tensor
            view = self.view(tensor)
            if any(self.operations[number].is_random for number in self.history(view)):
                raise refusal("the model's code uses values that depend on random ones")
            return self.replay(view, {})

    def history(self, view: View) -> list[int]:
        """Return the numbers of the operations that the content of a tensor depends on."""
        numbers: set[int] = set()
        open_ends = [(view.storage, len(self.operations))]
        while open_ends:
            storage, end = open_ends.pop()
            earlier = bisect_left(storage.writers, end)
            number = storage.writers[earlier - 1] if earlier else None
            if number is not None and number not in numbers:
                numbers.add(number)
                open_ends += [(each, number) for each in self.operations[number].needs]
        return sorted(numbers)

    @torch.no_grad()
    def replay(self, wanted: View, seed_of: Mapping[int, int]) -> Tensor:
        """Return the content of a tensor on the CPU; `seed_of` has the random operations."""
        memory = _Memory()
        for number in self.history(wanted):
            operation = self.operations[number]
            if operation.is_random:
                torch.default_generator.manual_seed(seed_of[number])
            args, kwargs = tree_map_only(View, memory.tensor, (operation.args, operation.kwargs))
            outputs = _tensors(operation.function(*args, **kwargs))
            for view, output in zip(operation.outputs, outputs, strict=bool(operation.outputs)):
                memory.keep(view, output)
        return memory.tensor(wanted)


class _Memory:
    """The content of the storages of a replay, as far as they are used."""

    def __init__(self) -> None:
        self._storages: dict[Storage, torch.UntypedStorage] = {}

    def tensor(self, view: View) -> Tensor:
        """Return the tensor of a view, which shares its memory with others of the storage."""
        if view.storage not in self._storages:
            if view.storage.constant is not None:
                content = view.storage.constant.clone()
            else:
                content = torch.zeros(view.storage.kept.nbytes(), dtype=torch.uint8)
            self._storages[view.storage] = content.untyped_storage()
        storage = self._storages[view.storage]
        return torch.empty(0, dtype=view.dtype).set_(storage, view.offset, view.size, view.stride)

    def keep(self, view: View, output: Tensor) -> None:
        """Take the result of an operator; copy it if the meta device laid it out otherwise."""
        if view.storage in self._storages:
            return  # of an argument, or a view of one
        storage, size = output.untyped_storage(), view.storage.kept.nbytes()
        if _described(output, view.storage) == view and storage.nbytes() == size:
            self._storages[view.storage] = storage
        else:
            self.tensor(view).copy_(output)


class _AsOnTheCpu(TorchFunctionMode):
    """Lets code that asks for the device or reads values work as on the CPU."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _AS_ON_THE_CPU:
            return _AS_ON_THE_CPU[func]
        if func in _READ_VALUES:
            with _disable_current_modes():
                return func(self._recorder.now(args[0]), *args[1:], **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _tensors(tree: object) -> list[Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, Tensor)]


def _storages(tree: object) -> set[Storage]:
    return {each.storage for each in tree_leaves(tree) if isinstance(each, View)}


def _needs(name: str, arguments: object) -> set[Storage]:
    """Return the storages that an operator reads."""
    views = [each for each in tree_leaves(arguments) if isinstance(each, View)]
    if name in _OVERWRITE:
        size = torch.Size(views[0].size).numel() * views[0].dtype.itemsize
        if size == views[0].storage.kept.nbytes():
            del views[0]
    return _storages(views)


def _described(tensor: Tensor, storage: Storage) -> View:
    size, offset = tuple(tensor.shape), int(tensor.storage_offset())
    return View(storage, tensor.dtype, size, tensor.stride(), offset)
