"""The list of benches: what each measures, how it is started, and what it needs."""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tests.bench import rounds
from tests.slurm.host import why_not

SETS = {
    "usual": "all that end within minutes: `make bench`",
    "gpu": "on one GPU: `make gpu-check`; the others measure the CPU, also where there is one",
    "start": "starts and restarts: `make bench-start`",
    "full": "all of them: `make bench-full`",
}


@dataclass(frozen=True)
class Bench:
    """One module of `tests.bench`, with a function `measure`.

    number: its number in docs/benchmarks.md. A number may have several modules.
    module: below `tests.bench`; its last part is the name of the bench.
    ranks: how many torchrun starts, each with a `Place`. 0: one process that imports no torch
        before the bench does; `measure` then gets an empty folder.
    sets: besides "full", which has all benches.
    needs: functions that return why the bench cannot run here, or None.
    limit_s: longer than this is an error.
    """

    number: str
    module: str
    title: str
    ranks: int = 1
    sets: frozenset[str] = frozenset({"usual"})
    needs: Sequence[Callable[[], str | None]] = ()
    limit_s: float = 400

    @property
    def name(self) -> str:
        """The word by which a user asks for this bench alone."""
        return self.module.rpartition(".")[2]

    def lacks(self) -> str | None:
        return next((why for need in self.needs if (why := need())), None)


def command(name: str) -> str | None:
    """Return that a command is not on PATH, or None."""
    return None if shutil.which(name) else f"needs the command {name}"


def gpu() -> str | None:
    """Return that there is no GPU, or None. Asks the driver: this process imports no torch."""
    return None if rounds.DRY_RUN in os.environ else command("nvidia-smi") and "there is no GPU"


START, ALONE, GPU = frozenset({"start"}), frozenset[str](), frozenset({"gpu"})
BENCHES = (
    Bench("B1", "start.submit", "submit latency: submitit with torch / kit", 0),
    Bench("B3", "start.first_step", "first step of two nodes: kit / bare torchrun", 0, START),
    Bench("B3", "start.restart", "SIGKILL of a rank to the next step", 0, START, limit_s=600),
    Bench("B4", "loop.overhead", "a training of the kit / of a bare DDP loop"),
    Bench("B4", "loop.overhead_two_ranks", "the same, a small MLP at two ranks", 2),
    # A count needs no quiet machine, and is most useful on a GPU.
    Bench("B6", "loop.device_syncs", "waits of the host for the device", sets=GPU | {"usual"}),
    Bench("B8", "checkpoint.stall", "torch.save / the kit's stall, 200 MB"),
    Bench("B10", "checkpoint.load", "load of 0.94 GB: kit / torch.load; peak memory"),
    Bench("B13", "start.requeue", "requeue: warning to stop, start to step", 0, START, (why_not,)),
    Bench("B15", "start.file_operations", "file calls", 0, needs=[partial(command, "strace")]),
    Bench("B18", "start.close", "what the close of an attempt of 10,000 nodes reads", 0, START),
    Bench("B19", "start.node_lost", "power loss of a node", 0, ALONE, (why_not,), 1800),
    # In the order of a check of eight minutes: what was measured on earlier GPUs comes last.
    Bench("G3", "gpu.bits", "bits after a SIGKILL, a stop; NVML", 0, GPU, (gpu,), 200),
    Bench("G4", "gpu.large_state", "save and load of 10 and 20 GB", 1, GPU, (gpu,), 130),
    Bench("G1", "gpu.throughput", "GPT-2, ResNet-50: kit / bare loop", 1, GPU, (gpu,), 240),
    Bench("G2", "gpu.save_stall", "torch.save / the kit's stall of a GPU", 1, GPU, (gpu,), 90),
)


def chosen(words: Sequence[str]) -> list[Bench]:
    """Return the benches that numbers, names and sets ask for, in the order of the list.

    Raises: ValueError for a word that names none.
    """
    asked = {word for each in words for word in each.split()}
    known = {*SETS} | {word for bench in BENCHES for word in (bench.number, bench.name)}
    if unknown := sorted(asked - known):
        raise ValueError(f"no bench has the name {', '.join(unknown)}")
    return [bench for bench in BENCHES if asked & {bench.number, bench.name, "full", *bench.sets}]


def listing() -> str:
    lines = [f"{bench.number:4} {bench.name:17} {bench.title}" for bench in BENCHES]
    return "\n".join([*lines, *(f"{name:22} {what}" for name, what in SETS.items())])
