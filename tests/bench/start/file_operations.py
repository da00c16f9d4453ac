"""B15: operations on files of the run directory, by rank, at the start and in each step."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.rounds import Figure, Target
from tests.bench.start.local_run import LocalRun

FEW_STEPS, MANY_STEPS = 30, 330
# All calls with a path, and those on an open file, whose path -y prints. %process: new threads.
CALLS = "%file,%process,getdents64,fsync,fdatasync,write,pwrite64,ftruncate"
STRACE = [
    *("strace", "-f", "--seccomp-bpf", "-y", "-qq", "-s", "300"),
    *("-e", "signal=none", "-e", f"trace={CALLS}"),
]
LISTING = "getdents64"
# A call that another thread's call interrupts in the file has a second line, which begins with
# "<... ".
LINE = re.compile(r"(?P<pid>\d+) +(?P<resumed><\.\.\. )?(?P<call>\w+)(?P<rest>.*)")


@dataclass
class Counts:
    """Operations of one rank on the run directory, by system call."""

    start: Counter[str]
    later: Counter[str]

    def whole(self) -> Counter[str]:
        """From the start of the process to its end."""
        return self.start + self.later


def measure(folder: Path) -> list[Figure]:
    """Counts by strace of whole local runs; the agents' and the other commands' do not count.

    What a step does is the difference of a long and a short training, over the steps between.
    """
    few = run_traced(folder / "few", FEW_STEPS, ranks_per_node=1)
    many = run_traced(folder / "many", MANY_STEPS, ranks_per_node=1)
    four = run_traced(folder / "four", FEW_STEPS, ranks_per_node=2)
    by_exec = run_traced(folder / "exec", FEW_STEPS, ranks_per_node=2, fork=False)
    steps = MANY_STEPS - FEW_STEPS
    first, other = (
        (many[rank].whole().total() - few[rank].whole().total()) / steps for rank in (0, 1)
    )
    listings = sum(counts.whole()[LISTING] for run in (few, many, four) for counts in run[1:])
    how = "file operations on the run directory (strace)"
    forked, others = (max(x.start.total() for x in run[1:]) for run in (four, by_exec))
    return [
        Figure(f"{how} per step, rank 1 of 2", other, Target("==", 0)),
        Figure(f"{how} per step, rank 0, which logs each 10 steps", first, None),
        Figure(f"{how} up to the first step, rank 0 of 4", four[0].start.total(), None),
        Figure(
            f"{how} up to the first step, each other rank of 4, forked", forked, Target("<=", 110)
        ),
        Figure(f"{how} the same, by exec", others, Target("<=", 150)),
        Figure(
            f"{how} up to the first step, rank 1: of 4 ranks / of 2",
            four[1].start.total() / few[1].start.total(),
            Target("==", 1),
        ),
        Figure("listings of a directory by other ranks than 0", listings, Target("==", 0)),
    ]


def run_traced(
    folder: Path, num_steps: int, ranks_per_node: int, fork: bool | str = "auto"
) -> list[Counts]:
    """The counts of each rank of a run of two nodes."""
    trace = folder.with_suffix(".strace")
    spec = {
        "launch": {"nproc_per_node": ranks_per_node, "fork": fork},
        "train": {
            "model": "mlp",
            "dataset": "digits",
            "max_steps": num_steps,
            "eval_every_epochs": None,
        },
        "checkpoint": {"interval": None},
    }
    with LocalRun(folder, spec, [*STRACE, "-o", str(trace)]) as run:
        run.wait()
    num_ranks = 2 * ranks_per_node
    pids = [run.events(f"rank-{rank:05d}", 1)["start"]["pid"] for rank in range(num_ranks)]
    with open(trace, encoding="utf-8", errors="replace") as file:
        return _counts(file, pids, str(run.dir.path))


def _counts(lines: Iterable[str], pids: list[int], run_dir: str) -> list[Counts]:
    """The operations of processes on a directory, before and after their event first_step."""
    counts = {pid: Counts(Counter(), Counter()) for pid in pids}
    is_started: dict[int, bool] = dict.fromkeys(pids, False)
    for pid, call, rest in calls(lines):
        # Also a path relative to the run directory counts: -y prints the directory.
        if pid not in counts or run_dir not in rest:
            continue
        (counts[pid].later if is_started[pid] else counts[pid].start)[call] += 1
        is_started[pid] |= "first_step" in rest
    return [counts[pid] for pid in pids]


def calls(lines: Iterable[str]) -> Iterator[tuple[int, str, str]]:
    """(process, system call, rest of the line) of each call in strace's output."""
    process: dict[int, int] = {}  # of each thread
    is_thread: dict[int, bool] = {}  # of the clone that a thread has begun
    for line in lines:
        match = LINE.match(line)
        if match is None:
            continue
        pid, call, rest = int(match["pid"]), match["call"], match["rest"]
        own = process.setdefault(pid, pid)
        if call in ("clone", "clone3"):
            is_thread[pid] = "CLONE_THREAD" in rest or (bool(match["resumed"]) and is_thread[pid])
            if new := re.search(r"= (\d+)", rest.rpartition(")")[2]):
                process[int(new[1])] = own if is_thread[pid] else int(new[1])
        elif not match["resumed"]:
            yield own, call, rest
