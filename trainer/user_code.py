"""Calls the code that the spec names, built in or by import path, and sorts what it raises."""

import contextlib
import importlib
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from .contract import Provenance, RunDir, Train, in_words, on_a_screen, records
from .errors import HINT, CodeError, UserCodeError, UserError, is_of_machine


def is_user_code(name: str | None) -> bool:
    """Return whether a value of the spec is an import path, `package.module:callable`."""
    return name is not None and ":" in name


def has_user_code(train: Train) -> bool:
    """Return whether any part of the training is code of the user."""
    parts = (train.model, train.objective, train.dataset, train.collate, train.transform)
    return any(map(is_user_code, (*parts, train.optimizer, train.schedule)))


@contextlib.contextmanager
def user_code(key: str, name: str) -> Iterator[None]:
    """Run a block of the code that `key` of the spec names; raise UserCodeError for its mistakes.

    An OSError becomes a CodeError, which is retried, because the code is not its cause. Errors of
    the machine are raised unchanged.
    """
    try:
        yield
    except (UserError, CodeError):
        raise
    except Exception as error:
        if is_of_machine(error):
            raise
        is_of_storage = isinstance(error, OSError) or isinstance(error.__cause__, OSError)
        named = with_key(error, key, name)
        raise (named if is_of_storage else UserCodeError(*named.args)) from error


def with_key(error: Exception, key: str, name: str) -> CodeError:
    """Return an error in its words with the key and name of its code, and its traceback."""
    trace = "".join(traceback.format_exception(error))
    return CodeError(f"{key} {name}: {on_a_screen(in_words(error))}", trace)


def call(key: str, function: Callable[..., Any], args: Mapping[str, Any], *given: Any) -> Any:
    """Call the code of the spec's `key` with `given` and `args`; return its value."""
    try:
        return function(*given, **args)
    except TypeError as error:
        # A traceback of one frame: the arguments do not fit the signature, a mistake in the spec.
        if error.__traceback__ is not None and error.__traceback__.tb_next is None:
            raise UserError(f"{key}_args: {error}") from error
        raise


def load(key: str, name: str, built_in: Mapping[str, Any] = {}) -> Callable[..., Any]:
    """Return a built-in part, or import the callable `package.module:name` of the spec's `key`.

    Raises: UserError.
    """
    if name in built_in:
        return built_in[name]  # type: ignore[no-any-return]
    module_name, colon, attribute = name.partition(":")
    if not colon:
        known = f"neither one of {', '.join(built_in)} nor" if built_in else "not"
        raise UserError(f"{key}: {name!r} is {known} a package.module:name")
    try:
        module = importlib.import_module(module_name)
        _refuse_live_code(module)
        function: Callable[..., Any] = getattr(module, attribute)
    except (ImportError, AttributeError) as error:
        hint = "name code that git tracks, or that the ranks' Python has: package.module:name"
        raise UserError(f"{key}: {name}: {error}", hint) from error
    return function


def _refuse_live_code(module: ModuleType) -> None:
    """Raise ImportError for a module of the submitted repository that is not the frozen one.

    pip leads there if the user has installed the repository as editable. A run that an agent has
    not started runs the live code.
    """
    if "KIT_RUN_DIR" not in os.environ or module.__file__ is None:
        return
    run_dir, file = RunDir(Path(os.environ["KIT_RUN_DIR"])), Path(module.__file__).resolve()
    if "site-packages" in file.parts or file.is_relative_to(run_dir.code.resolve()):
        return
    known = records.read(Provenance, run_dir.provenance)
    live = None if known is None else known.repository
    frozen = (run_dir.path, run_dir.path.parent.parent / ".code")
    if live is None or not file.is_relative_to(live) or any(map(file.is_relative_to, frozen)):
        return
    top = file.relative_to(live).parents[module.__name__.count(".") + (file.stem == "__init__")]
    setup = f"setup: ['export PYTHONPATH=$PWD/{top}:$PYTHONPATH']"
    what = f"{file} is not frozen, perhaps because pip has installed the repository as editable"
    raise ImportError(f"{what}{HINT}let the frozen code come first, in the spec: {setup}")
