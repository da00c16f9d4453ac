"""Runs at the start of a user's script: reports its error, refuses code that is not frozen.

Python imports a module of this name before the script. jobs.node.rank lets it find this one first,
once: the script and what it starts find the search path that they would have had. The report has
what the log does not show: the class of the error with its bases, its errno, and where its message
ends. Without it, as with another sys.excepthook, the wrapper reads the log.
"""

from __future__ import annotations

import _thread
import atexit
import json
import os
import sys
import traceback
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent
ERRORS = HERE.parents[1] / "errors.py"
MAX_TEXT = 20_000
MAX_TRACE = 30_000
LINKS = ("code", "kit", "script_code")  # of a run directory, to frozen code


def restore_search_path() -> None:
    """Remove this folder from the search path of this process and of those that it starts."""
    before, _, rest = os.environ.get("PYTHONPATH", "").partition(os.pathsep)
    if before == str(HERE):
        del os.environ["PYTHONPATH"]
        if rest:
            os.environ["PYTHONPATH"] = rest
    sys.path[:] = [entry for entry in sys.path if entry != str(HERE)]


def run_next() -> None:
    """Run the module that Python would have found in place of this one."""
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None:
        load(spec)


def load(spec: ModuleSpec | None) -> ModuleType:
    """Import the module that `spec` has found."""
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Reports:
    """Sends lines to the wrapper, from this process alone and not from its forks."""

    def __init__(self, pipe: int) -> None:
        self.pipe, self.pid = pipe, os.getpid()
        self.exit_text: str | None = None
        self.show, self.leave = sys.excepthook, sys.exit
        os.set_inheritable(pipe, False)
        self.file = self._file()
        self.send(begun=True)

    def _file(self) -> tuple[int, int]:
        status = os.fstat(self.pipe)
        return status.st_dev, status.st_ino

    def send(self, **values: Any) -> None:
        # The script may have closed all files, and opened its own with this number.
        if os.getpid() == self.pid and self._file() == self.file:
            text = json.dumps(values, ensure_ascii=False) + "\n"
            os.write(self.pipe, text.encode("utf-8", "backslashreplace"))

    def excepthook(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Report an error that nothing caught, then show it as before."""
        if _is_running(trace):  # the script caught it, shows it and goes on
            self.show(kind, error, trace)
            return
        try:
            errors = load(spec_from_file_location("kit_errors", ERRORS))
            number = getattr(error, "errno", None)
            self.send(
                text=errors.in_words(error)[:MAX_TEXT],
                names=[each.__name__ for each in kind.__mro__],
                errno=number if isinstance(number, int) else None,
                traceback="".join(traceback.format_exception(error))[-MAX_TRACE:],
            )
        except Exception:  # the error itself must be shown, whatever it is
            pass
        self.show(kind, error, trace)

    def exit(self, status: str | int | None = None, /) -> NoReturn:
        """Keep the text with which the script leaves; Python prints it, and exits with 1.

        256 and its multiples, as os.system() returns them for a command that failed, would be 0.
        """
        if isinstance(status, int) and status and status % 256 == 0:
            self.exit_text = f"sys.exit({status}), of which the exit code would be 0"
            print(self.exit_text, file=sys.stderr, flush=True)
            self.leave(1)
        self.exit_text = None if status is None or isinstance(status, int) else str(status)
        self.leave(status)

    def at_exit(self) -> None:
        try:
            if self.exit_text is not None:
                self.send(exit_text=self.exit_text[:MAX_TEXT])
            # Bound methods of one object are equal.
            main = getattr(sys.modules.get("__main__"), "__file__", None)
            self.send(ended=True, is_hook_ours=sys.excepthook == self.excepthook, main=main)
        except Exception:  # the pipe is full, or the script has closed it
            pass


class _Exit:
    """In place of sys.exit. In a pickle it is sys.exit, as the function is."""

    __name__ = __qualname__ = "exit"
    __module__ = "sys"

    def __init__(self, reports: Reports) -> None:
        self.reports = reports

    def __call__(self, status: Any = None, /) -> NoReturn:
        self.reports.exit(status)

    def __reduce__(self) -> str:
        return "exit"


class _Write:
    """In place of sys.stderr.write: keeps the text of a SystemExit that nothing caught.

    The interpreter prints it when the main thread has no frame of Python left. Other such output,
    as of an error in an atexit function, comes later. No function: as an attribute of a class it
    is no method, as the write of a stream is none.
    """

    def __init__(self, reports: Reports, write: Callable[[str], int]) -> None:
        self.reports, self.write = reports, write
        self.main, self.is_printed = _thread.get_ident(), False

    def __call__(self, text: str, /) -> int:
        if not self.is_printed and _thread.get_ident() == self.main:
            try:
                sys._getframe(1)
            except ValueError:
                self.reports.exit_text, self.is_printed = text, True
        return self.write(text)


def keep_printed_exit(reports: Reports) -> None:
    """Let `reports` have the text of a SystemExit that was raised without sys.exit, too."""
    if sys.stderr is not None:  # closed at the start
        sys.stderr.write = _Write(reports, sys.stderr.write)  # type: ignore[method-assign]


class LiveCode:
    """Finds modules before all other finders, and refuses those of the live repository.

    submit asks the interpreter where it finds the imports that it reads. A name made at run time, a
    path that the script adds, or setup lines may lead elsewhere. A live module with no frozen copy
    may be data, as of a cache: it is named only.
    """

    def __init__(self, live: str, run: str) -> None:
        self.live, self.run = os.path.realpath(live), os.path.realpath(run)
        self.inner = [os.path.realpath(each) for each in (sys.prefix, sys.base_prefix, run)]
        self.inner += [os.path.realpath(os.path.join(run, each)) for each in LINKS]
        self.inner = [each for each in self.inner if _is_below(each, self.live)]
        self.finding: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if path is not None or name == "slurm_job_kit":  # a part of a package; the kit itself
            return None
        if name in self.finding:  # asked by a finder that asks all others, too
            return None
        self.finding.add(name)
        try:
            for finder in [each for each in sys.meta_path if each is not self]:
                find = getattr(finder, "find_spec", None)
                spec: ModuleSpec | None = None if find is None else find(name, None, target)
                if spec is not None:
                    self.check(name, spec)
                    return spec
        finally:
            self.finding.discard(name)
        return None

    def check(self, name: str, spec: ModuleSpec) -> None:
        """Raises: ImportError for a module of the live repository that has a frozen copy."""
        place = os.path.realpath(spec.origin) if spec.has_location and spec.origin else ""
        is_live = _is_below(place, self.live) and "site-packages" not in place.split(os.sep)
        if not is_live or any(_is_below(place, each) for each in self.inner):
            return
        text = f"{name} is imported from {place}, which is not frozen"
        if os.path.exists(os.path.join(self.run, "code", os.path.relpath(place, self.live))):
            raise ImportError(
                f"{text}: an edit during the run would change it\n  hint: build the path that leads"
                " there from __file__, or install the package without -e",
                name=name,
                path=place,
            )
        print(f"warning: {text}", file=sys.stderr, flush=True)


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)


def refuse_live_code() -> None:
    """Let this process import no live code of the repository that was submitted."""
    if live := os.environ.pop("KIT_LIVE_CODE", ""):
        sys.meta_path.insert(0, LiveCode(live, os.environ["KIT_RUN_DIR"]))


def _is_running(trace: TracebackType | None) -> bool:
    frame: FrameType | None = sys._getframe()
    while trace is not None and frame is not None:
        if frame is trace.tb_frame:
            return True
        frame = frame.f_back
    return False


def main() -> None:
    restore_search_path()
    pipe = os.environ.pop("KIT_ERROR_PIPE", "")
    if pipe.isdecimal():
        try:
            reports = Reports(int(pipe))
        except OSError:  # something between the wrapper and this process has closed it
            return
        sys.excepthook, sys.exit = reports.excepthook, _Exit(reports)
        atexit.register(reports.at_exit)
        keep_printed_exit(reports)


main()
refuse_live_code()
run_next()
