"""B18: what the close of an attempt reads, by the number of nodes.

The files are those that agents and ranks leave after a lost node: a record of each agent, and of
each rank an error record and a timeline. They lie in memory: a shared file system adds its time for
each file.
"""

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from slurm_job_kit.jobs.attempt import record_writer
from slurm_job_kit.jobs.attempt.decision import decide, history_of
from slurm_job_kit.jobs.attempt.ending import ending_of
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.nodes import AgentRecord, AttemptPlan, Head, RankError
from slurm_job_kit.jobs.contract.records.timeline import Event
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Spec
from slurm_job_kit.jobs.runs import evidence, fact_reader
from tests.bench.rounds import Figure, Target
from tests.core.file_operations import watched

NODES, PER_NODE = (100, 10_000), 8
# Of the attempt, of the lost node and its ranks.
OTHER_FILES = 11


def measure(_: Path) -> list[Figure]:
    """Write the files of an attempt of each size, and close it."""
    figures = []
    for nodes in NODES:
        with tempfile.TemporaryDirectory(prefix="bench-", dir="/dev/shm") as folder:
            figures += _figures(RunDir(Path(folder)), nodes)
    return figures


def _figures(run_dir: RunDir, nodes: int) -> list[Figure]:
    _write(run_dir, tuple(f"n{number:05d}" for number in range(nodes)))
    began = time.process_time()
    facts = fact_reader.read(run_dir, 1)
    read_s = time.process_time() - began
    with watched(run_dir.path) as operations:
        fact_reader.read(run_dir, 1)
    began = time.process_time()
    seen = evidence.rank_evidence(facts, "RUNNING", 1)
    ending = ending_of(facts, seen, 100.0)
    decision = decide(ending, history_of(facts.attempts))
    records.append(run_dir.attempts, record_writer.record_of(facts, ending, decision, 100.0))
    decide_s = time.process_time() - began
    files = sum(number for (name, _), number in operations.items() if name == "open")
    size = run_dir.attempts.stat().st_size
    place = f"{nodes} nodes of {PER_NODE} ranks"
    return [
        Figure(f"{place}: files read", files, Target("==", nodes + OTHER_FILES)),
        Figure(f"{place}: CPU time of that", round(read_s, 3), None, unit="s"),
        Figure(f"{place}: CPU time of the decision", round(decide_s, 4), None, unit="s"),
        Figure(f"{place}: size of the attempt's record", size, None, unit="bytes"),
    ]


def _write(run_dir: RunDir, names: Sequence[str]) -> None:
    attempt = run_dir.attempt(1)
    attempt.path.mkdir(parents=True)
    run_dir.checkpoints.mkdir()
    run_dir.timeline("x").parent.mkdir()
    run_dir.spec.write_text(Spec().to_json(), encoding="utf-8")
    plan = AttemptPlan(1, "7", tuple(names), Head("10.0.0.1", "", 1), 1.0, None)
    records.write(attempt.plan, plan)
    for node_rank, name in enumerate(names):
        is_lost = node_rank == len(names) - 1
        end = None if is_lost else 50.0
        agent = AgentRecord(name, "10.0.0.2", "7.0", (), None if is_lost else 1, end)
        ranks = range(node_rank * PER_NODE, (node_rank + 1) * PER_NODE)
        for rank in ranks:
            _put(run_dir.timeline(f"rank-{rank:05d}"), Event(10.0, "spawn", 1, host=name, pid=1))
        if not is_lost:
            lost = "lost a peer"
            errors = tuple(RankError(49.0, x, name, lost, caused_by_peer=True) for x in ranks)
            for error in errors:
                _put(attempt.rank_error(error.rank), error)
            agent = replace(agent, ranks=tuple(ranks), errors=errors)
        _put(attempt.agent(node_rank), agent)


def _put(path: Path, record: AgentRecord | Event | RankError) -> None:
    """Write a record without the fsync that a real writer does."""
    path.write_text(json.dumps(records.encode(record)) + "\n", encoding="utf-8")
