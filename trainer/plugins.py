"""A name in the spec, either built in or an import path, becomes a call."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from trainer.errors import UserError


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
