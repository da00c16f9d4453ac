"""Records what each rank of a rehearsed training does, and holds a rank where a harm shall come.

Python imports a module of this name at its start: the folder is on PYTHONPATH. A rank writes its
events as JSON lines to KIT_REHEARSE/rank-<rank>.<pid>.jsonl:

    begin     of the process
    group     the process group exists, with how many ranks
    step      an optimizer step, with the fields of `traces.Update`
    eval      the first forward pass without gradients, or in evaluation mode, after a step
    save      a state file is written, with the fields of `traces.Save`
    full      the disk cannot be recorded, and why

At the moment KIT_REHEARSE_MOMENT a rank creates the file `held-<rank>.<pid>`, and waits until
the file `go` exists; at `rank 1 save 3` this rank, and at `rank 1 half 3` with half of the file.

While the number of its steps is in KIT_REHEARSE_DISK (`6:7`), each rank records the disk before
whatever Python does to files, and around torch.save and safetensors.

A process that would change what is not below a folder in KIT_REHEARSE_OWN makes the link `outside`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import hashlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = str(Path(__file__).resolve().parent)
STATE_SUFFIXES = (
    *(".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".npz", ".npy", ".pkl", ".pickle"),
    *(".distcp", ".tar", ".model", ".state"),
)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Python reports each before it happens. Of those that change a file: how many paths they have.
_ONE = ("open", "os.remove", "os.truncate", "shutil.rmtree", "os.chmod", "os.utime")
CHANGES = dict.fromkeys(_ONE, 1) | dict.fromkeys(("os.rename", "os.link"), 2)
FILE_EVENTS = (
    *(*CHANGES, "os.rmdir", "os.mkdir", "os.symlink"),
    *("subprocess.Popen", "os.system", "os.posix_spawn"),
)
OUTSIDE = "outside"
OWN = tuple(f"{each}/" for each in os.environ.get("KIT_REHEARSE_OWN", "").split(os.pathsep))
LEAVE_S = 0.1  # for gloo's threads to free what they hold, before the interpreter ends


class Fed:
    """An input of the model; is_used: whether its output got gradients, or cannot be watched."""

    def __init__(self, inputs: str) -> None:
        self.inputs, self.is_used = inputs, True

    def watch(self, output: Any) -> None:
        """Wait for gradients: a forward pass without them takes no part in the training."""
        for tensor in filter(lambda each: each.requires_grad, tensors_in(output)):
            self.is_used = False
            tensor.register_hook(self.use)

    def use(self, _: Any) -> None:
        self.is_used = True


class EventLog:
    """Writes the events of this rank; one for each process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.folder = Path(os.environ["KIT_REHEARSE"])
        self.name = f"{os.environ['RANK']}.{self.pid}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self.file = os.open(self.folder / f"rank-{self.name}.jsonl", flags, 0o600)
        self.moment = os.environ["KIT_REHEARSE_MOMENT"]
        self.place = os.environ["KIT_REHEARSE_PLACE"]
        self.counts: dict[str, int] = {}
        self.begun: dict[int, tuple[str, str]] = {}  # of each optimizer, before its first step
        self.numbers: dict[int, int] = {}  # of the optimizers
        self.fed: list[Fed] = []
        self.random: str | None = None
        self.scale: float | None = None
        self.stepping: Any = None
        self.steps = self.depth = 0
        self.is_evaluating = False
        self.recorded = range(*map(int, os.environ["KIT_REHEARSE_DISK"].split(":")))
        self.event("begin")

    def event(self, name: str, **values: Any) -> None:
        line = {"t": time.time(), "event": name, **values}
        os.write(self.file, (json.dumps(line) + "\n").encode())

    def reach(self, name: str, written: str = "") -> None:
        """Count a moment of this name; hold the rank there if it is the chosen one.

        written: the file that is then only half written.
        """
        self.counts[name] = self.counts.get(name, 0) + 1
        here = f"{name} {self.counts[name]}"
        if self.moment in (here, f"rank {self.name.partition('.')[0]} {here}"):
            if os.path.isfile(written):
                os.truncate(written, os.path.getsize(written) // 2)
            (self.folder / f"held-{self.name}").touch()
            while self.folder.is_dir() and not (self.folder / "go").exists():
                time.sleep(0.01)


_recorder: EventLog | None = None


def recorder() -> EventLog | None:
    """Return the recorder of this process; None in a process that is no rank, such as torchrun."""
    global _recorder
    if _recorder is None and "RANK" in os.environ:
        _recorder = EventLog()
    return _recorder if _recorder is not None and _recorder.pid == os.getpid() else None


def tensors_in(value: Any) -> Iterator[Any]:
    """Yield the tensors in nested lists, tuples, mappings and objects like a mapping."""
    if hasattr(value, "untyped_storage"):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each)


def check_sum(tensors: Iterable[Any]) -> str:
    """Return a check sum of the bytes of tensors; of a sharded one the bytes of this rank."""
    total = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        data = local.detach().cpu().contiguous()
        total.update(ctypes.string_at(data.data_ptr(), data.numel() * data.element_size()))
    return total.hexdigest()


def random_states(torch: ModuleType) -> str:
    """Return check sums of the states of the global random generators: torch, Python and NumPy."""
    states = [torch.get_rng_state()]
    states += torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    others = [repr(random.getstate()).encode()]
    if (numpy := sys.modules.get("numpy")) is not None and hasattr(numpy, "random"):
        others.append(repr(numpy.random.get_state()[2:]).encode())
        others[-1] += numpy.random.get_state()[1].tobytes()
    sums = [hashlib.blake2b(each, digest_size=8).hexdigest() for each in others]
    return ".".join([check_sum(states), *sums])


def sums(optimizer: Any) -> tuple[str, str]:
    weights = [each for group in optimizer.param_groups for each in group["params"]]
    return check_sum(weights), check_sum(tensors_in([optimizer.state.get(x, {}) for x in weights]))


def watch_steps(torch: ModuleType) -> None:
    """Record each optimizer step, also those that a GradScaler leaves out."""

    def before(optimizer: Any, *_: Any) -> None:
        own = recorder()
        if own is None or own.stepping is not None:  # an optimizer inside of another one
            return
        own.stepping = optimizer
        begin_step(own, optimizer)
        record_disk()
        own.reach("step")

    def after(optimizer: Any, *_: Any) -> None:
        own = recorder()
        if own is not None and own.stepping is optimizer:
            own.stepping = None
            end_step(own, optimizer)
            record_disk()
            own.reach("end")

    hooks = import_module("torch.optim.optimizer")
    hooks.register_optimizer_step_pre_hook(before)
    hooks.register_optimizer_step_post_hook(after)
    scaler = torch.amp.GradScaler
    scaled_step = scaler.step

    def step(self: Any, optimizer: Any, *arguments: Any, **options: Any) -> Any:
        if (own := recorder()) is None:
            return scaled_step(self, optimizer, *arguments, **options)
        own.scale, taken = self.get_scale(), own.steps
        result = scaled_step(self, optimizer, *arguments, **options)
        if own.steps == taken:
            begin_step(own, optimizer)
            end_step(own, optimizer)
        return result

    scaler.step = step


def begin_step(own: EventLog, optimizer: Any) -> None:
    if id(optimizer) not in own.begun:
        own.begun[id(optimizer)] = sums(optimizer)


def end_step(own: EventLog, optimizer: Any) -> None:
    began, ended = own.begun.pop(id(optimizer)), sums(optimizer)
    fed = [each.inputs for each in own.fed if each.is_used]
    if fed:  # else what loads a state may follow: torch's DCP first takes a step
        own.begun[id(optimizer)] = ended
    own.event(
        "step",
        began=began,
        ended=ended,
        lr=[float(group["lr"]) for group in optimizer.param_groups if "lr" in group],
        scale=own.scale,
        random=own.random,
        fed=fed,
        optimizer=own.numbers.setdefault(id(optimizer), len(own.numbers)),
        has_handler=signal.getsignal(signal.SIGTERM) != signal.SIG_DFL,
    )
    own.fed, own.random, own.is_evaluating = [], None, False
    own.steps += 1


def watch_forward(torch: ModuleType) -> None:
    """Record what each outermost module is fed in training, and when an evaluation begins."""
    module = torch.nn.Module
    original = module.__call__

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling() or (own := recorder()) is None or own.depth:
            return original(self, *arguments, **options)
        own.depth += 1
        try:
            fed = enter(own, self, (arguments, options))
            output = original(self, *arguments, **options)
            if fed is not None:
                fed.watch(output)
            return output
        finally:
            own.depth -= 1

    def enter(own: EventLog, called: Any, inputs: Any) -> Fed | None:
        if next(called.parameters(), None) is None:  # a loss
            return None
        # Of the layers: a wrapper around the model may keep another mode.
        is_in_training = any(each.training for each in called.modules() if not each._modules)
        if torch.is_grad_enabled() and is_in_training:
            own.random = own.random or random_states(torch)
            data = [each for each in tensors_in(inputs) if not each.requires_grad]
            own.fed.append(Fed(check_sum(data)))  # else it comes from another module
            return own.fed[-1]
        if not own.is_evaluating:
            own.is_evaluating = True
            own.event("eval")
            own.reach("evaluation")
        return None

    module.__call__ = call


def watch_group(torch: ModuleType) -> None:
    """Record when the process group exists, and keep each group to the end of the process.

    The destructor of a gloo group waits with the GIL for a thread that may wait for the GIL (torch
    2.13): then a training with DistributedDataParallel hangs after its last step, now and then.
    """
    distributed = torch.distributed
    if not distributed.is_available():
        return
    module: Any = import_module("torch.distributed.distributed_c10d")
    make: Any = getattr(module, "_new_process_group_helper", None)

    def make_and_keep(*arguments: Any, **options: Any) -> Any:
        if is_first := not distributed.is_initialized():
            # A thread that frees a Python object while the interpreter ends aborts the process.
            atexit.register(time.sleep, LEAVE_S)
        result = make(*arguments, **options)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(result))
        if is_first and (own := recorder()) is not None:  # also for a device mesh
            own.event("group", size=result[0].size())
            own.reach("start")
        return result

    if make is not None:
        module._new_process_group_helper = make_and_keep


def watch_saves(module: Any) -> None:
    """Record each torch.save, or save_file of safetensors."""
    name = "save" if module.__name__ == "torch" else "save_file"
    original = getattr(module, name)

    def save(*arguments: Any, **options: Any) -> Any:
        targets = [*arguments[1:2], options.get("f"), options.get("filename")]
        target: Any = next((each for each in targets if each is not None), None)
        # An open file has a name, one in memory none.
        is_path = isinstance(target, (str, os.PathLike))
        path = os.path.abspath(target) if is_path else str(getattr(target, "name", None) or "")
        ask([path] if path else [])
        if not path or (own := recorder()) is None:
            return original(*arguments, **options)
        own.event("save", kind="save", path=path)
        own.reach("save")
        record_disk(path)
        result = original(*arguments, **options)
        own.reach("half", path)
        own.event("save", kind="done", path=path)
        record_disk()
        return result

    setattr(module, name, save)


WATCHED: dict[str, tuple[Callable[[ModuleType], None], ...]] = {
    "torch": (watch_steps, watch_forward, watch_group, watch_saves),
    "safetensors.torch": (watch_saves,),
}


class Watch(MetaPathFinder):
    """Finds a watched module as Python does, and changes what is recorded after its import."""

    def __init__(self) -> None:
        self.is_finding = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in WATCHED or self.is_finding:
            return None
        self.is_finding = True
        try:
            spec = find_spec(name)
        finally:
            self.is_finding = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                for watch in WATCHED[name]:
                    watch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_thread = threading.local()  # is_busy: it records, which also does something to files


def record_disk(opened: str = "") -> None:
    """Record the disk, also in a fork that a rank saves by, if it is time for that."""
    own = _recorder
    if own is None or own.steps not in own.recorded or getattr(_thread, "is_busy", False):
        return
    _thread.is_busy = True
    try:
        disk.record(Path(own.place), own.folder / "disk", opened)
    except OSError as error:
        own.recorded = range(0)
        own.event("full", why=str(error))
    finally:
        _thread.is_busy = False


def ask(paths: Iterable[Any]) -> None:
    """Refuse to change a file that is not the training's. Raises: PermissionError.

    So does the kernel where it has Landlock, but the path is lost where a program ignores that.
    """
    names = (os.fsdecode(path) for path in paths if not isinstance(path, int))
    for place in map(os.path.realpath, names):
        # Python can do without its bytecode.
        if not f"{place}/".startswith(OWN) and "/__pycache__/" not in place:
            with contextlib.suppress(FileExistsError):  # the first one counts
                os.symlink(place, f"{os.environ['KIT_REHEARSE']}/{OUTSIDE}")
            raise PermissionError(errno.EACCES, "outside of the copy that is rehearsed", place)


def watch_files() -> None:
    """Record renames and writes of state files; refuse to change what is not the training's."""

    def hook(name: str, arguments: tuple[Any, ...]) -> None:
        if name not in FILE_EVENTS or getattr(_thread, "is_busy", False):
            return
        path = arguments[0] if isinstance(arguments[0], (str, bytes)) else ""
        if name == "open" and not (path and arguments[2] & WRITES):
            return
        if name not in ("os.rename", "os.remove") or arguments[-1] == -1:  # not in shutil.rmtree
            ask(arguments[: CHANGES.get(name, 0)])
        _thread.is_busy = True  # the recorder opens its own file
        own = recorder()
        _thread.is_busy = False
        place = os.path.realpath(os.fsdecode(path)) if name == "open" else ""
        if name != "open" or (_recorder and place.startswith(f"{_recorder.place}/")):
            record_disk(place)
        if own is not None and name == "open":
            if place.endswith(STATE_SUFFIXES) and arguments[2] & os.O_TRUNC:
                own.event("save", kind="open", path=place)
                own.reach("open")
        elif own is not None and name == "os.rename":
            target = os.fsdecode(arguments[1])
            if os.path.isdir(path) or target.endswith(STATE_SUFFIXES):
                own.event("save", kind="rename", path=os.path.abspath(target))
                own.reach("rename")

    sys.addaudithook(hook)


def run_next() -> None:
    """Run the module that Python would have found in place of this one."""
    # The kit may have put a link to this folder on the path.
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != HERE]
    if (spec := PathFinder.find_spec("sitecustomize")) is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if "KIT_REHEARSE" in os.environ:
        disk = import_module("kit_disk")  # while the folder is on the path
        del sys.modules["kit_disk"]  # the script may have one of its own
        sys.meta_path.insert(0, Watch())
        watch_files()
    run_next()
