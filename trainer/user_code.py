"""A name in the spec, either built in or an import path, becomes a call; what its code raises."""

from __future__ import annotations

import contextlib
import importlib
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from trainer.errors import CodeError, UserCodeError, UserError, in_one_line, is_caused_by_peer

# The machine's trouble, not the code's: memory, devices, the network. Another attempt may do.
OF_MACHINE = (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError, dist.DistError)
# What of it torch raises as a plain RuntimeError.
MACHINE_WORDS = (
    "CUDA error",
    "CUDNN_STATUS",
    "CUBLAS_STATUS",
    "CUSOLVER_STATUS",
    "NCCL",
    "gloo/",
    "DefaultCPUAllocator",
)


@contextlib.contextmanager
def user_code(key: str, name: str) -> Iterator[None]:
    """A block that runs the code which `key` of the spec names: its mistakes are told as such.

    An OSError is no mistake of the code: it is told with the key, too, but worth another attempt.
    """
    try:
        yield
    except (UserError, CodeError):
        raise
    except Exception as error:
        if is_of_machine(error):
            raise
        is_of_storage = isinstance(error, OSError) or isinstance(error.__cause__, OSError)
        told = with_key(error, key, name)
        raise (told if is_of_storage else UserCodeError(*told.args)) from error


def with_key(error: Exception, key: str, name: str) -> CodeError:
    """What the code that `key` of the spec names raised, as one line and a traceback."""
    trace = "".join(traceback.format_exception(error))
    return CodeError(f"{key} {name}: {in_one_line(error)}", trace)


def is_of_machine(error: Exception) -> bool:
    """Whether an error in the user's code is that of a device, the memory or another rank."""
    text = str(error)
    is_plain = isinstance(error, RuntimeError) and any(words in text for words in MACHINE_WORDS)
    # What torch.compile's back end raises may be a full disk or a compiler that was killed.
    is_compiler = type(error).__module__.startswith("torch._inductor")
    return is_plain or is_compiler or isinstance(error, OF_MACHINE) or is_caused_by_peer(error)


def call(
    key: str, name: str, built_in: Mapping[str, Callable[..., Any]], args: Mapping[str, Any]
) -> Any:
    """What the callable `name` of the spec's `key` returns for `args`."""
    function = built_in.get(name) or _load(key, name, ", ".join(built_in))
    try:
        return function(**args)
    except TypeError as error:
        # Only a call that does not fit the signature is the spec's mistake.
        if error.__traceback__ is not None and error.__traceback__.tb_next is None:
            raise UserError(f"{key}_args: {error}") from error
        raise


def _load(key: str, name: str, built_in: str) -> Callable[..., Any]:
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise UserError(f"{key}: {name!r} is neither one of {built_in} nor a package.module:name")
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"{key}: {name}: {error}") from error
    if not callable(function):
        raise UserError(f"{key}: {name} cannot be called")
    return function
