"""Leaves bad nodes out of a job's next starts: nodes that failed the preflight of an attempt.

Through the job's ExcNodeList, which Slurm takes only while the job is pending, so after the
requeue. The new list replaces the old one, so what the user excluded is repeated. A list that
leaves too few nodes would keep the job pending for ever (BadConstraints, priority 0; measured on
22.05), so Slurm is asked first whether such a job could run, which knows of features, drained and
reserved nodes, too. Standard library only.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from jobs import records
from jobs.attempt.interpret import AttemptFacts
from jobs.console import say
from jobs.records import AttemptRecord, SlurmSite
from jobs.rundir import RunDir
from jobs.slurm import client, sbatch
from jobs.spec import Spec

EXPIRES_S = 24 * 3600.0
_PART = re.compile(r"([^,\[]|\[[^\]]*\])+")
_BRACKETS = re.compile(r"\[([^\]]*)\]")


def bad_nodes(attempts: Sequence[AttemptRecord], now: float) -> dict[str, str]:
    """Nodes that failed a preflight in the last 24 h, the newest first, with the reason."""
    found: dict[str, str] = {}
    for record in reversed(attempts):
        if now - record.stop < EXPIRES_S:
            for node in named(record):
                found.setdefault(node, reason_of(record))
    return found


def named(record: AttemptRecord) -> list[str]:
    """An attempt's bad nodes by Slurm's names: a host may know itself by a longer one."""
    hosts = record.evidence.bad_nodes
    short = {host.partition(".")[0] for host in hosts}
    return [node for node in record.nodes or () if node in hosts or node in short]


def reason_of(record: AttemptRecord) -> str:
    """Why a node failed, without the rank and the node that the record begins with."""
    error = record.evidence.error or "preflight"
    start = error.find("preflight: ")
    return error[max(start, 0) :]


def choose(bad: Iterable[str], others: Collection[str], size: int, needed: int) -> list[str]:
    """Which of the bad nodes, newest first, to leave out of a partition of `size` nodes.

    At most a tenth of it, and never so many that with `others`, which are left out anyway, fewer
    than the `needed` nodes remain.
    """
    spare = size - len(others) - needed
    more = [node for node in bad if node not in others]
    return more[: max(0, min(max(1, size // 10), spare))]


def expand(hostlist: str) -> list[str]:
    """The nodes of Slurm's short form, such as n[1-3,07] or r[1-2]n[1-4]."""
    names: list[str] = []
    for part in _PART.finditer(hostlist):
        names += _expand(part[0])
    return [] if hostlist == "(null)" else names


def _expand(part: str) -> list[str]:
    brackets = _BRACKETS.search(part)
    if brackets is None:
        return [part]
    head, tail = part[: brackets.start()], part[brackets.end() :]
    numbers = [number for item in brackets[1].split(",") for number in _range(item)]
    return [f"{head}{number}{rest}" for number in numbers for rest in _expand(tail)]


def _range(item: str) -> list[str]:
    first, dash, last = item.partition("-")
    if not dash:
        return [first]
    return [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]


def renew(run_dir: RunDir, found: AttemptFacts, job_id: str, present: str) -> None:
    """Bring the list of a pending job up to date; `present` is its ExcNodeList now.

    Slurm is asked nothing unless the attempt before found a bad node, or one may come back.
    """
    attempts, spec = found.attempts, found.spec
    bad = bad_nodes(attempts, time.time())
    ever = {node for record in attempts for node in named(record)}
    wished = expand(spec.slurm.exclude or "")
    others = [node for node in expand(present) if node not in ever or node in wished]
    ours = {*expand(present)} - {*others}
    if ours <= bad.keys() and not (attempts and named(attempts[-1])):
        return
    nodes, limit = satisfiable(run_dir, spec, found.site, bad, others)
    problem = client.set_excluded(job_id, [*others, *nodes]) if {*nodes} != ours else ""
    for node, reason in bad.items():
        if node in nodes and not problem:
            say(f"node {node} is left out of the next attempts for 24 h: {reason}")
        else:
            say(f"node {node} may take part in the next attempt ({problem or limit}): {reason}")
    for node in sorted(ours - bad.keys()):
        say(f"node {node} may take part in the next attempt again{problem and f': {problem}'}")


def without_bad_nodes(run_dir: RunDir, spec: Spec) -> Spec:
    """The spec of a run that is submitted again, without the nodes that failed lately."""
    bad = bad_nodes(records.read_attempts(run_dir), time.time())
    site = records.read(SlurmSite, run_dir.site)
    wished = expand(spec.slurm.exclude or "")
    nodes, _ = satisfiable(run_dir, spec, site, bad, wished) if bad else ([], "")
    for node in nodes:
        say(f"node {node} is left out: {bad[node]}")
    exclude = ",".join([*wished, *nodes]) or None
    return replace(spec, slurm=replace(spec.slurm, exclude=exclude)) if nodes else spec


def hand_on(run_dir: RunDir, found: AttemptFacts, successor: str | None) -> None:
    """The same for the job that waits for the end of this one, after a bad node only."""
    is_asked = successor is not None and found.last is not None and bool(named(found.last))
    job = client.show_job(successor) if successor and is_asked else None
    if successor is not None and job is not None:
        renew(run_dir, found, successor, job.excluded)


def satisfiable(
    run_dir: RunDir,
    spec: Spec,
    site: SlurmSite | None,
    bad: Mapping[str, str],
    others: list[str],
) -> tuple[list[str], str]:
    """(the bad nodes that can be left out of the job, why no others)."""
    size = partition_size(site, os.environ.get("SLURM_JOB_PARTITION", "")) if bad else None
    if size is None:
        return [], "Slurm does not tell how many nodes the partition has"
    chosen = choose(bad, others, size, spec.slurm.nodes)
    for nodes in (chosen, chosen[:1]):
        if nodes and could_run(run_dir, spec, [*others, *nodes]):
            return nodes, f"a tenth of the {size} nodes is left out already"
    return [], "too few others are left for this job"


def partition_size(site: SlurmSite | None, name: str) -> int | None:
    """How many nodes a partition has, of whatever state; None if nobody knows.

    Of the partitions that the run asked for the submit has noted it. `name`: empty outside of a
    job, where the smallest of them counts.
    """
    noted = {each.name: each.nodes for each in (site or SlurmSite()).partition_nodes}
    if name in noted or (not name and noted):
        return int(noted.get(name) or min(noted.values()))
    return client.partition_size(name) if name else None


def could_run(run_dir: RunDir, spec: Spec, nodes: list[str]) -> bool:
    """Whether Slurm would ever start this job without these nodes; nothing is submitted."""
    without = replace(spec, slurm=replace(spec.slurm, exclude=",".join(nodes)))
    argv = sbatch.sbatch_argv(without, run_dir)
    environ = sbatch.successor_environ(os.environ, run_dir)
    answer = client.test_only(argv, environ)
    return answer is not None and answer.returncode == 0
