"""Starts torchrun again and again, each time as a fork of this process, which has imported torch.

    python -u launcher.py

reads on stdin one JSON line for each start: argv (the options of torchrun, the script, its words),
env, cwd, log, and the file that gets the exit code (code); it is empty until then. torchrun's ranks
are forks, too. What a fork changes: the ranks of all starts have one hash seed, and NumPy's
generator is seeded here.

The plugin fast_start forks by torchrun's own --start-method=fork, for which a rank that leaves by
os._exit(0) still runs. The kit's trainer does not do so; any training may. This file runs by the
training's interpreter, which may have torch and not the kit.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NoReturn

importlib.import_module("torch.distributed.run")
# How torchrun starts a rank, up to torch 2.13 and without a public name.
HANDLER = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"
with contextlib.suppress(ImportError):  # the first optimizer imports it, which takes seconds
    importlib.import_module("torch._dynamo")


def load(name: str, path: Path) -> Any:
    """Import a file of the kit under a name that the training's interpreter does not use."""
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


probe = load("kit_probe", Path(__file__).with_name("sitecustomize.py"))
signed = load("kit_signed", Path(__file__).resolve().parents[3] / "node/signed_torchrun.py")


def run(become: Callable[[], Any]) -> NoReturn:
    """Run a function as the whole process, and end as Python ends: its threads, and atexit."""
    code = 0
    try:
        become()
    except SystemExit as error:
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threads: Any = threading
    threads._shutdown()  # it ends the workers of executors, and waits for other threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError):  # it is closed
            stream.flush()
    os._exit(code)


def open_files() -> set[int]:
    """Return the numbers of the files that this process has open."""
    numbers = os.listdir("/proc/self/fd")  # one of them is of this list
    return {int(each) for each in numbers if os.path.exists(f"/proc/self/fd/{each}")}


def fork(
    args: Sequence[str], become: Callable[[], Any], env: Mapping[str, str], **options: Any
) -> subprocess.Popen[bytes]:
    """Start a fork of this process that runs a function in place of the program `args`."""
    known = open_files()

    def begin() -> None:
        gc.enable()  # Popen disables it
        for fd in open_files() - known - {0, 1, 2}:
            os.close(fd)  # Popen waits for that: an exec does it
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(env)
        run(become)

    return subprocess.Popen(args, preexec_fn=begin, **options)


def fork_rank(args: Sequence[str], env: Mapping[str, str], **options: Any) -> Any:
    """Start a rank as a fork of its torchrun, in place of subprocess.Popen."""
    sys.stdout.flush()
    sys.stderr.flush()
    return fork(args, lambda: run_script([*args][1:]), env, **options)


def run_script(words: list[str]) -> None:
    """Run `[-u] SCRIPT WORDS...` or `[-u] -m MODULE WORDS...` as Python runs it."""
    words = words[1:] if words[0] == "-u" else words
    if words[0] == "-m":
        sys.argv[:] = words[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = words
        sys.path[0] = str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


def run_torchrun(argv: Sequence[str]) -> None:
    """Be the torchrun of one start."""
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    signed.main(argv)


def main() -> None:
    """Start what each line of stdin asks for, and wait for its end."""
    handler: Any = importlib.import_module(HANDLER)
    handler.Popen = fork_rank
    probe.arm()
    for line in sys.stdin:
        call = json.loads(line)
        options = {"cwd": call["cwd"], "stdin": subprocess.DEVNULL, "start_new_session": True}
        code = Path(call["code"])
        with open(call["log"], "ab") as log:
            options |= {"stdout": log, "stderr": log}
            become = functools.partial(run_torchrun, call["argv"])
            process = fork(["torchrun"], become, call["env"], **options)
        code.touch()
        code.write_text(str(process.wait()))


if __name__ == "__main__":
    main()
