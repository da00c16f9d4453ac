"""Small runs on the real Slurm of tests/slurm: what grows with the number of nodes and ranks.

All nodes share this machine, so wall time says little; CPU seconds, files, bytes and requests to
slurmctld do. The second run of a size goes under strace, which counts the file operations.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_job_kit.jobs.records.training import read_events
from tests.slurm.cluster import Cluster
from tests.slurm.kit import Kit, Run

SIZES = ((2, 1), (4, 1), (4, 2), (4, 4))  # (nodes, ranks on each)
LIMIT_S = 600.0
SPEC = """
name: ranks
train: {model: mlp, dataset: breast_cancer, max_steps: 100, micro_batch_size: 4,
  eval_every_epochs: null}
checkpoint: {every_epochs: null}
"""
# Each node's agent with all its descendants: user and system CPU time, one line per node.
TIMED = '"$@"; code=$?; times >"$TIMES/$SLURM_NODEID"; exit $code'
_TIMES = re.compile(r"(\d+)m([\d.]+)s")
_CALL = re.compile(r"^\d+ +(\w+)\(")


@dataclass(frozen=True)
class Measured:
    """One run of 100 steps and one attempt."""

    nodes: int
    ranks: int
    cpu_s: float  # of all agents with their torchruns and ranks
    rendezvous_s: float  # wall: rank 0's first line -> all ranks have met
    first_step_s: float  # wall: rank 0's first line -> first step
    end_s: float  # wall: rank 0 is complete -> the attempt is recorded
    requests: dict[str, int]  # to slurmctld, by kind
    files: int  # in the run directory, without frozen code
    log_bytes: int  # of those: job.log and the logs of ranks and agents
    run_dir_operations: dict[str, int]  # system calls with a path in the run directory, by process
    file_operations: int  # all system calls with a path, of agents, torchruns and ranks


def measure(
    root: Path, sizes: Sequence[tuple[int, int]] = SIZES, traced: int = 8
) -> list[Measured]:
    """Run each size; those of at most `traced` ranks once more under strace."""
    most = max(nodes for nodes, _ in sizes)
    per_node = max(ranks for _, ranks in sizes)
    with Cluster(root, nodes=most, cpus=2 * per_node) as cluster:
        work = root / "work"
        config = work / "ranks.yaml"
        config.write_text(SPEC, encoding="utf-8")
        kit = Kit(cluster, work / "runs")
        return [_measure(kit, config, *size, traced=traced) for size in sizes]


def _measure(kit: Kit, config: Path, nodes: int, per_node: int, traced: int) -> Measured:
    ranks, times = nodes * per_node, config.with_name("times")
    shutil.rmtree(times, ignore_errors=True)
    times.mkdir()
    kit.cluster.run("sdiag", "--reset")
    run = _train(kit, config, nodes, per_node, f"export TIMES={times}", ["bash", "-c", TIMED, "x"])
    requests = _requests(kit.cluster.run("sdiag").stdout)
    events = {each.event: each.t for each in read_events(run.dir.timeline("rank-00000"))}
    ended = run.attempts()[-1]["stop"]
    files = [path for path in _files(run.dir.path) if path.is_file()]
    operations: Counter[str] = Counter()
    everything = 0
    if ranks <= traced:
        operations, everything = _trace(kit, config, nodes, per_node)
    return Measured(
        nodes,
        ranks,
        round(sum(_seconds(path.read_text(encoding="utf-8")) for path in times.iterdir()), 2),
        round(events["rendezvous"] - events["start"], 3),
        round(events["first_step"] - events["start"], 3),
        round(ended - events["completed"], 3),
        requests,
        len(files),
        sum(path.stat().st_size for path in files if path.suffix == ".log"),
        dict(operations),
        everything,
    )


def _train(
    kit: Kit, config: Path, nodes: int, per_node: int, setup: str, prefix: Sequence[str]
) -> Run:
    """A complete run, each agent behind a command prefix."""
    spec = config.with_name(f"ranks-{nodes}-{per_node}.yaml")
    launch = f"launch: {{nproc_per_node: {per_node}, python: {sys.executable},\n"
    launch += f"  command_prefix: {_yaml(prefix)}}}\n"
    text = f"{SPEC}setup: {_yaml([setup])}\n{launch}"
    spec.write_text(text, encoding="utf-8")
    words = (f"slurm.nodes={nodes}", f"slurm.cpus_per_task={per_node}")
    run = kit.submit(spec, *words)
    # Each look at the job's state would be a request to slurmctld.
    kit.cluster.wait_for(run.dir.result.exists, f"the end of {run.dir.path}", LIMIT_S)
    run.wait()
    return run


def _yaml(words: Sequence[str]) -> str:
    return "[" + ", ".join("'" + word.replace("'", "''") + "'" for word in words) + "]"


def _trace(kit: Kit, config: Path, nodes: int, per_node: int) -> tuple[Counter[str], int]:
    """(system calls with a path in the run directory by process kind, all with a path)."""
    traces = config.with_name("traces")
    shutil.rmtree(traces, ignore_errors=True)
    traces.mkdir()
    prefix = ["strace", "-f", "-ff", "-qq", "-e", "trace=%file", "-o", f"{traces}/t"]
    run = _train(kit, config, nodes, per_node, ":", prefix)
    mine: Counter[str] = Counter()
    everything = 0
    pids = {each["pid"]: number for number, each in _spawned(run)}
    for path in traces.iterdir():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        everything += len(lines)
        pid = int(path.suffix[1:])
        who = {0: "rank 0"}.get(pids[pid], "other ranks") if pid in pids else "agents and torchruns"
        code = str(run.dir.path / "code")
        inside = [x for x in lines if str(run.dir.path) in x and code not in x]
        mine[who] += len(inside)
    return mine, everything


def _spawned(run: Run) -> list[tuple[int, dict[str, int]]]:
    ranks = sorted((run.dir.path / "timeline").glob("rank-*.jsonl"))
    found = []
    for path in ranks:
        number = int(path.stem.partition("-")[2])
        spawned = [each for each in read_events(path) if each.event == "spawn" and each.pid]
        found += [(number, {"pid": each.pid or 0}) for each in spawned]
    return found


def _files(folder: Path) -> list[Path]:
    links = {"code", "kit", "work", "script_code"}
    tops = [path for path in folder.iterdir() if path.name not in links]
    return [inner for top in tops for inner in ([top] if top.is_file() else top.rglob("*"))]


def _requests(text: str) -> dict[str, int]:
    """The requests that slurmctld counted, without those of slurmd and of this measurement."""
    kinds = text.partition("by message type")[2].partition("by user")[0]
    found = re.findall(r"^\s+(\w+)\s+\(\s*\d+\) count:(\d+)", kinds, re.MULTILINE)
    return {name: int(count) for name, count in found}


def _seconds(text: str) -> float:
    """User and system time of the children: the second line of `times`. Source: bash(1)."""
    children = text.splitlines()[1]
    return sum(60 * int(minutes) + float(seconds) for minutes, seconds in _TIMES.findall(children))
