"""Runs at the start of a user's script: reports an error that nothing caught to its wrapper.

Python imports a module of this name before the script. jobs.node.rank lets it find this one first,
once: the script and what it starts find the search path that they would have had. The report has
what the log does not show: the class of the error with its bases, its errno, and where its message
ends. Without it, as with another sys.excepthook, the wrapper reads the log.
"""

import atexit
import importlib.util
import json
import os
import sys
import traceback
from importlib.machinery import PathFinder
from pathlib import Path

HERE = Path(__file__).resolve().parent
ERRORS = HERE.parents[1] / "errors.py"
MAX_TEXT = 20_000
MAX_TRACE = 30_000


def restore_search_path():
    """Remove this folder from the search path of this process and of those that it starts."""
    before, _, rest = os.environ.get("PYTHONPATH", "").partition(os.pathsep)
    if before == str(HERE):
        del os.environ["PYTHONPATH"]
        if rest:
            os.environ["PYTHONPATH"] = rest
    sys.path[:] = [entry for entry in sys.path if entry != str(HERE)]


def run_next():
    """Run the module that Python would have found in place of this one."""
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


class Reports:
    """Sends lines to the wrapper, from this process alone and not from its forks."""

    def __init__(self, pipe):
        self.pipe, self.pid, self.exit_text = pipe, os.getpid(), None
        self.show, self.leave = sys.excepthook, sys.exit
        os.set_inheritable(pipe, False)
        self.send(begun=True)

    def send(self, **values):
        if os.getpid() == self.pid:
            text = json.dumps(values, ensure_ascii=False) + "\n"
            os.write(self.pipe, text.encode("utf-8", "backslashreplace"))

    def excepthook(self, kind, error, trace):
        """Report an error that nothing caught, then show it as before."""
        try:
            spec = importlib.util.spec_from_file_location("kit_errors", ERRORS)
            errors = importlib.util.module_from_spec(spec)
            sys.modules["kit_errors"] = errors  # for its dataclasses
            spec.loader.exec_module(errors)
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

    def exit(self, status=None, /):
        """Keep the text with which the script leaves; Python prints it, and exits with 1."""
        self.exit_text = None if status is None or isinstance(status, int) else str(status)
        self.leave(status)

    def at_exit(self):
        try:
            if self.exit_text is not None:
                self.send(exit_text=self.exit_text[:MAX_TEXT])
            # Bound methods of one object are equal.
            self.send(ended=True, is_hook_ours=sys.excepthook == self.excepthook)
        except Exception:  # the pipe is full, or the script has closed it
            pass


def main():
    restore_search_path()
    pipe = os.environ.pop("KIT_ERROR_PIPE", "")
    if pipe.isdecimal():
        try:
            reports = Reports(int(pipe))
        except OSError:  # something between the wrapper and this process has closed it
            return
        sys.excepthook, sys.exit = reports.excepthook, reports.exit
        atexit.register(reports.at_exit)


main()
run_next()
