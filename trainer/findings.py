"""Turns what the parts of a run raise into findings for submit: errors and warnings.

An error is certain: every rank would raise it, because code, arguments and packages are the same
there. What depends on a device or on files that another host may have is a warning.
"""

from __future__ import annotations

import difflib
import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from .contract import OPTIMIZERS, Finding, Provenance, RunDir, Spec, records
from .errors import HINT, CodeError, NoSamples, UserError, in_one_line

MAX_FRAMES = 3
_TRAINER = Path(__file__).resolve().parent
# The kit's messages begin with the key that they are about.
_KEY = re.compile(r"((?:train|checkpoint|launch|slurm|log)(?:\.\w+)+)[: ]+(.*)", re.DOTALL)


class Findings:
    """Makes findings of exceptions, for one run on this host."""

    def __init__(self, run_dir: RunDir, spec: Spec) -> None:
        self._code = run_dir.code.resolve()
        known = records.read(Provenance, run_dir.provenance)
        self._checkout = None if known is None or known.repository is None else known.repository
        self._spec = spec
        # Setup lines and srun options may choose other packages and variables for the ranks.
        self._has_same_packages = not (spec.setup or spec.slurm.srun_args)
        self._lacks_files = any(_is_elsewhere(text) for _, text in self._texts())
        libraries = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
        own = {str(_TRAINER), str(_TRAINER.parent / "jobs")}
        self._not_users = tuple(f"{Path(path).resolve()}/" for path in libraries | own)

    def of(self, key: str, error: BaseException) -> Finding:
        """Return the finding for an error of the part at `key` of the section train."""
        text = str(error) if isinstance(error, (UserError, CodeError)) else in_one_line(error)
        head, _, hint = text.partition(HINT)
        cause = _cause(error)
        match = _KEY.fullmatch(head)
        path = tuple(match[1].split(".")) if match else ("train", key)
        return Finding(
            path,
            match[2] if match else head,
            hint or self._hint(path[1].removesuffix("_args"), cause),
            tuple(self._frames(cause)),
            self.is_certain(key, error),
        )

    def is_certain(self, key: str, error: BaseException) -> bool:
        """Return whether every rank would raise this error, too."""
        cause = _cause(error)
        is_of_kit = not self._is_users(_innermost(cause))
        if isinstance(cause, SyntaxError):
            return self._has_same_packages
        if isinstance(cause, ImportError):
            return self._is_missing(cause)
        if isinstance(cause, FileNotFoundError):
            return self._is_relative(cause.filename)
        if isinstance(cause, (AttributeError, TypeError)):
            # The kit looked up the name, or called it with the arguments of the spec.
            return self._is_kits(_innermost(cause))
        if isinstance(cause, ValueError) and not isinstance(cause, UserError):
            return key == "optimizer" and self._spec.train.optimizer in OPTIMIZERS
        if not isinstance(cause, UserError) or isinstance(cause, NoSamples) or not is_of_kit:
            return False
        return key != "dataset" or not self._lacks_files

    def _is_relative(self, file: object) -> bool:
        """Return whether this is a relative path of the spec's arguments.

        Another one may follow from a variable that only the compute nodes have.
        """
        if not isinstance(file, str) or os.path.isabs(file) or self._spec.setup:
            return False
        given = [os.path.normpath(text) for _, text in self._texts() if text]
        return os.getcwd() == str(self._code) and any(
            Path(os.path.normpath(file)).is_relative_to(text) for text in given
        )

    def unfrozen_paths(self) -> Iterator[Finding]:
        """Yield the relative paths in arguments of own code that the ranks will not find."""
        for path, text in self._texts():
            owner = getattr(self._spec.train, path[1].removesuffix("_args"))
            is_path = "/" in text and not re.search(r"^[/~$]|://|\s", text)
            if not is_path or ":" not in (owner or "") or (self._code / text).exists():
                continue
            in_checkout = None if self._checkout is None else Path(self._checkout, text)
            if in_checkout and in_checkout.exists():
                what = f"{text} is not in the frozen code, in which the ranks run: git ignores it"
                yield Finding(path, what, f"write {in_checkout}", is_error=False)
            elif text.startswith(("./", "../")):
                what = f"{text} does not exist in the frozen code, in which the ranks run"
                yield Finding(path, what, "write an absolute path", is_error=False)

    def _texts(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield each text in the arguments of the section train, with its key."""
        for name, value in vars(self._spec.train).items():
            if name.endswith("_args"):
                yield from _texts_in(("train", name), value)

    def _is_missing(self, error: ImportError) -> bool:
        """Return whether the ranks cannot import this module either."""
        if isinstance(error, ModuleNotFoundError):
            return self._has_same_packages or self._is_frozen((error.name or "").partition(".")[0])
        # A name that a Python file lacks. A library that cannot be loaded may need a driver.
        path = error.path or ""
        is_frozen = Path(path).resolve().is_relative_to(self._code)
        return path.endswith(".py") and (is_frozen or self._has_same_packages)

    def _is_frozen(self, module: str) -> bool:
        return bool(module) and any(
            (self._code / name).exists() for name in (module, f"{module}.py")
        )

    def _hint(self, key: str, cause: BaseException) -> str:
        """Return how to fix an error; "" where the error itself shows it."""
        name = str(getattr(self._spec.train, key, ""))
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            return self._hint_for_module(cause.name)
        module, _, attribute = name.partition(":")
        loaded_module = sys.modules.get(module)
        if isinstance(cause, AttributeError) and loaded_module is not None:
            near = difflib.get_close_matches(attribute, dir(loaded_module), n=1)
            return f"did you mean {module}:{near[0]}?" if near else ""
        function = getattr(loaded_module, attribute, None)
        if isinstance(cause, TypeError) and callable(function):
            try:
                return f"its arguments: {attribute}{inspect.signature(function)}"
            except (TypeError, ValueError):  # written in C
                return ""
        return ""

    def _hint_for_module(self, name: str) -> str:
        top, *rest = name.split(".")
        folder = self._code.joinpath(*name.split(".")[:-1])
        known = [path.stem for path in folder.glob("*") if path.suffix in ("", ".py")]
        near = difflib.get_close_matches(name.rpartition(".")[2], known, n=1)
        relative = name.replace(".", "/")
        live = [Path(self._checkout or "/", path) for path in (relative, f"{relative}.py")]
        if self._checkout and any(path.exists() for path in live):
            return f"git ignores {relative}, so it is not in the frozen code: git add -f"
        if near:
            return f"did you mean {'.'.join([*name.split('.')[:-1], near[0]])}?"
        if rest and self._is_frozen(top):
            return ""
        return f"{sys.executable} -m pip install {top}, if that is its package"

    def _frames(self, error: BaseException) -> list[str]:
        """Return the last frames of the user's files: `net.py:12, in forward: x = self.a(x)`."""
        if isinstance(error, SyntaxError) and error.filename:
            return [f"{self._shown(error.filename)}:{error.lineno}: {(error.text or '').strip()}"]
        frames = traceback.extract_tb(error.__traceback__)
        return [
            f"{self._shown(frame.filename)}:{frame.lineno}, in {frame.name}: {frame.line}"
            for frame in frames
            if self._is_users(Path(frame.filename))
        ][-MAX_FRAMES:]

    def _shown(self, file: str) -> str:
        path = Path(file).resolve()
        return str(path.relative_to(self._code)) if path.is_relative_to(self._code) else file

    def _is_users(self, file: Path) -> bool:
        is_installed = {"site-packages", "dist-packages"} & set(file.parts)
        is_of_others = str(file.resolve()).startswith(self._not_users)
        return file.suffix == ".py" and not (is_installed or is_of_others)

    @staticmethod
    def _is_kits(file: Path) -> bool:
        return file.resolve().is_relative_to(_TRAINER)


def _cause(error: BaseException) -> BaseException:
    """Return the error of the user's code below the kit's error, if there is one."""
    is_kits = isinstance(error, (UserError, CodeError))
    return error.__cause__ if is_kits and error.__cause__ is not None else error


def _innermost(error: BaseException) -> Path:
    """Return the file that raised an error."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return Path(trace.tb_frame.f_code.co_filename) if trace else Path()


def _texts_in(path: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _texts_in((*path, str(name)), item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts_in(path, item)


def _is_elsewhere(text: str) -> bool:
    """Return whether a text is a path that this host does not have, or has an unset variable."""
    path = os.path.expanduser(os.path.expandvars(text))
    fixed = re.split(r"[*?\[]", path)[0]  # of a pattern, the folder
    folder = fixed if fixed == path else os.path.dirname(fixed)
    return "$" in path or (os.path.isabs(path) and not os.path.exists(folder))
