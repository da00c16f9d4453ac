"""Small runs on the real Slurm of tests/slurm: what grows with the number of nodes and ranks.

All nodes share this machine, so wall time says little; CPU seconds, files, bytes and requests to
slurmctld do. The second run of a size goes under strace, which counts the file operations as B15
(tests/bench/start/file_operations.py) does.
"""

import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurm_job_kit.jobs.contract.records.timeline import read_events
from tests.bench.start import file_operations
from tests.slurm.cluster import Cluster
from tests.slurm.kit import Kit, Run

# (nodes, ranks on each)
SIZES = ((2, 1), (4, 1), (8, 1), (4, 2), (4, 4), (4, 8), (8, 8))
STEPS = 100
# Under strace each start takes several times as long.
TRACED_RANKS, TRACED_STEPS = 32, 20
LIMIT_S = 600.0
SPEC = """
name: ranks
train: {model: mlp, dataset: breast_cancer, micro_batch_size: 4, eval_every_epochs: null}
checkpoint: {every_epochs: null, interval: null}
"""
# Each node's agent with all its descendants: user and system CPU time, one line per node.
TIMED = '"$@"; code=$?; times >"$TIMES/$SLURM_NODEID"; exit $code'
_TIMES = re.compile(r"(\d+)m([\d.]+)s")
# A file for each node: all its processes.
TRACED = f'exec {shlex.join(file_operations.STRACE)} -o "$TRACES/$SLURM_NODEID" "$@"'
# What B15 traces beside the calls with a path.
_WITHOUT_PATH = re.compile(
    "clone3?|v?fork|wait.*|exit.*|.*kill|getdents64|f.*sync|p?write(64)?|ftruncate"
)


def measure(root: Path) -> list[dict[str, Any]]:
    """Run each size; those of at most TRACED_RANKS ranks once more under strace."""
    most = max(nodes for nodes, _ in SIZES)
    per_node = max(ranks for _, ranks in SIZES)
    with Cluster(root, nodes=most, cpus=2 * per_node) as cluster:
        kit = Kit(cluster, cluster.site.work_dir / "runs")
        return [_measure(kit, size) for size in SIZES]


def _measure(kit: Kit, size: tuple[int, int]) -> dict[str, Any]:
    nodes, per_node = size
    ranks, times = nodes * per_node, _empty_folder(kit, "times")
    kit.cluster.run("sdiag", "--reset")
    run = _train(kit, size, STEPS, f"TIMES={times}", TIMED)
    requests = _requests(kit.cluster.run("sdiag").stdout)
    events = {each.event: each.t for each in read_events(run.dir.timeline("rank-00000"))}
    files = [path for path in _files(run.dir.path) if path.is_file()]
    operations, everything = _trace(kit, size) if ranks <= TRACED_RANKS else ({}, 0)
    cpu_s = sum(_seconds(path.read_text(encoding="utf-8")) for path in times.iterdir())
    return {
        "nodes": nodes,
        "ranks": ranks,
        "cpu_s": round(cpu_s, 2),  # of all agents with their torchruns and ranks
        # Wall time from rank 0's first line, and from its end to the record of the attempt.
        "rendezvous_s": round(events["rendezvous"] - events["start"], 3),
        "first_step_s": round(events["first_step"] - events["start"], 3),
        "end_s": round(run.attempts()[-1]["stop"] - events["completed"], 3),
        "requests": requests,  # to slurmctld, by kind
        "files": len(files),  # in the run directory, without frozen code
        "log_bytes": sum(path.stat().st_size for path in files if path.suffix == ".log"),
        "operations": operations,  # on the run directory, without frozen code, by process
        "file_operations": everything,  # with a path, of agents, torchruns and ranks
    }


def _empty_folder(kit: Kit, name: str) -> Path:
    folder = kit.cluster.site.work_dir / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _train(kit: Kit, size: tuple[int, int], steps: int, variable: str, script: str) -> Run:
    """A complete run, each agent started by a bash script that has an environment variable."""
    nodes, per_node = size
    spec = kit.cluster.site.work_dir / f"ranks-{nodes}-{per_node}.yaml"
    launch = f"launch: {{nproc_per_node: {per_node}, python: {sys.executable},\n"
    launch += f"  command_prefix: {_yaml(['bash', '-c', script, 'x'])}}}\n"
    text = f"{SPEC}setup: {_yaml(['export ' + variable])}\n{launch}"
    spec.write_text(text, encoding="utf-8")
    resources = (f"slurm.nodes={nodes}", f"slurm.cpus_per_task={per_node}")
    run = kit.submit(spec, *resources, f"train.max_steps={steps}")
    # Each look at the job's state would be a request to slurmctld.
    kit.cluster.wait_for(run.dir.result.exists, f"the end of {run.dir.path}", LIMIT_S)
    run.wait()
    return run


def _yaml(words: Sequence[str]) -> str:
    return "[" + ", ".join("'" + word.replace("'", "''") + "'" for word in words) + "]"


def _trace(kit: Kit, size: tuple[int, int]) -> tuple[dict[str, int], int]:
    """(operations on the run directory by kind of process, all calls with a path)."""
    traces = _empty_folder(kit, "traces")
    run = _train(kit, size, TRACED_STEPS, f"TRACES={traces}", TRACED)
    inside, code = str(run.dir.path), str(run.dir.path / "code")
    calls: Counter[int] = Counter()
    everything = 0
    for path in traces.iterdir():
        with open(path, encoding="utf-8", errors="replace") as lines:
            for pid, call, rest in file_operations.calls(lines):
                everything += not _WITHOUT_PATH.fullmatch(call)
                calls[pid] += inside in rest and code not in rest
    ranks = [calls.pop(pid) for pid in _pids(run)]
    operations = {
        "rank 0": ranks[0],
        "another rank, least": min(ranks[1:]),
        "another rank, most": max(ranks[1:]),
        "agents and torchruns": calls.total(),
    }
    return operations, everything


def _pids(run: Run) -> list[int]:
    """The processes of the ranks, by rank."""
    return [
        next(each.pid for each in read_events(path) if each.event == "start" and each.pid)
        for path in sorted((run.dir.path / "timeline").glob("rank-*.jsonl"))
    ]


def _files(folder: Path) -> list[Path]:
    links = {"code", "kit", "work"}
    tops = [path for path in folder.iterdir() if path.name not in links]
    return [inner for top in tops for inner in ([top] if top.is_file() else top.rglob("*"))]


def _requests(text: str) -> dict[str, int]:
    """The requests that slurmctld counted, without those of slurmd and of this measurement."""
    kinds = text.partition("by message type")[2].partition("by user")[0]
    matches = re.findall(r"^\s+(\w+)\s+\(\s*\d+\) count:(\d+)", kinds, re.MULTILINE)
    return {name: int(count) for name, count in matches}


def _seconds(text: str) -> float:
    """User and system time of the children: the second line of `times`. Source: bash(1)."""
    children = text.splitlines()[1]
    return sum(60 * int(minutes) + float(seconds) for minutes, seconds in _TIMES.findall(children))
