"""Starts torchrun again and again, each time as a fork of this process, which has imported torch.

    python -u launcher.py

reads on stdin one JSON line for each start: argv (the options of torchrun, the script, its words),
env, cwd, log, pid and code. The files `pid` and `code` get the process id, and at the end the exit
code. torchrun's ranks are forks, too. So a start takes the time of no import of torch. What a fork
changes: the ranks of all starts have one hash seed, and NumPy's generator is seeded here.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NoReturn

torchrun = importlib.import_module("torch.distributed.run")
# How torchrun starts a rank, up to torch 2.13 and without a public name.
HANDLER = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"
with contextlib.suppress(ImportError):  # the first optimizer imports it, which takes seconds
    importlib.import_module("torch._dynamo")
# Under a name of its own: the interpreter may have a sitecustomize already.
_spec = spec_from_file_location("kit_probe", Path(__file__).with_name("sitecustomize.py"))
assert _spec is not None and _spec.loader is not None
probe = module_from_spec(_spec)
_spec.loader.exec_module(probe)


def run(become: Callable[[], Any]) -> NoReturn:
    """Run a function as the whole process, and end it as Python would."""
    code = 0
    try:
        become()
    except SystemExit as error:
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        trace = error.__traceback__
        while trace and trace.tb_next and trace.tb_frame.f_code.co_name != "<module>":
            trace = trace.tb_next  # without the frames of this file
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = 1
    finish(code)


def finish(code: int) -> NoReturn:
    """End this fork as Python ends: its threads, and what is registered with atexit."""
    import atexit

    threading: Any = importlib.import_module("threading")
    threading._shutdown()  # it ends the workers of executors, and waits for other threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError):  # it is closed
            stream.flush()
    os._exit(code)


class ForkedProcess:
    """A rank as a fork of its torchrun, in place of subprocess.Popen."""

    def __init__(self, args: Sequence[str], env: Mapping[str, str], **options: Any) -> None:
        self.args = args
        self.returncode: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.setsid()
            for stream, fd in ((options.get("stdout"), 1), (options.get("stderr"), 2)):
                if stream is not None:
                    os.dup2(stream if isinstance(stream, int) else stream.fileno(), fd)
            os.environ.clear()
            os.environ.update(env)
            probe.forget()
            run(lambda: run_script([*args][1:]))

    def poll(self) -> int | None:
        """Return the exit code; None while the rank runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the rank. Raises: TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired([*self.args], timeout or 0)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal to the rank while it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)


def run_script(words: list[str]) -> None:
    """Run `[-u] SCRIPT WORDS...` or `[-u] -m MODULE WORDS...` as Python runs it."""
    words = [*words][1:] if words[0] == "-u" else words
    if words[0] == "-m":
        sys.argv[:] = words[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = words
        sys.path[0] = str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


def start(call: dict[str, Any]) -> None:
    """Be the torchrun of one start."""
    os.environ.clear()
    os.environ.update(call["env"])
    os.chdir(call["cwd"])
    log = os.open(call["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, fd in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, fd)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    torchrun.main(call["argv"])


def wait_for(call: dict[str, Any]) -> None:
    """Start a torchrun in a session of its own, and write its pid and its exit code."""
    os.setsid()
    if (pid := os.fork()) == 0:
        os.setsid()
        run(lambda: start(call))
    write(call["pid"], pid)
    write(call["code"], os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def write(path: str, number: int) -> None:
    """Write a number to a file, at once as a whole."""
    Path(f"{path}.tmp").write_text(str(number))
    os.replace(f"{path}.tmp", path)


def main() -> None:
    """Start what each line of stdin asks for."""
    handler: Any = importlib.import_module(HANDLER)
    handler.Popen = ForkedProcess
    probe.arm()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            wait_for(json.loads(line))
            os._exit(0)


if __name__ == "__main__":
    main()
