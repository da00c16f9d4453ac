"""What a run would meet at a site: what cannot work there, and what its user should know.

From a `Site` and what a spec asks of Slurm to remarks of one line. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.rundir import RunDir, read_jsonl, write_json
from jobs.slurm import duration
from jobs.slurm.site import KILL_WAIT_S, SLURMD_PORT, Site
from jobs.spec import Slurm

# What a stop is taken to need until one was measured: noticing, saving, committing.
ASSUMED_STOP_S = 30


@dataclass(frozen=True)
class Remark:
    """What is wrong with a key at this site, and the way out."""

    key: str
    what: str
    way_out: str
    is_error: bool = False  # it cannot work at all

    def __str__(self) -> str:
        return f"{self.key}: {self.what}\n  hint: {self.way_out}"

    @property
    def in_one_line(self) -> str:
        return f"{'error' if self.is_error else 'note'}: {self.key}: {self.what}; {self.way_out}"


def check(wished: Slurm, sites: Sequence[Site], stop_s: float | None = None) -> list[Remark]:
    """All remarks, errors first. `stop_s`: how long the run's slowest stop took, if known.

    Of several partitions Slurm takes any: only what is wrong with all of them is an error.
    """
    each = [[*_limits(wished, site), *_stops(wished, site, stop_s)] for site in sites]
    could_work = any(not any(remark.is_error for remark in remarks) for remarks in each)
    if could_work:
        each = [[r for r in remarks if not r.is_error] for remarks in each]
    unique = dict.fromkeys(remark for remarks in each for remark in remarks)
    return sorted(unique, key=lambda remark: not remark.is_error)


def _limits(wished: Slurm, site: Site) -> Iterator[Remark]:
    """A job above a partition's limits is queued, and never starts (EnforcePartLimits=NO)."""
    partition, where = site.partition, f"partition {site.partition.name}"
    # Then the limits may be other ones than the partition's.
    is_sure = not (wished.qos or partition.has_own_qos or site.config.chooses_partition)
    time_s = duration.parse_or_zero(wished.time)
    if partition.max_time_s is not None and time_s > partition.max_time_s:
        most = duration.canonical(partition.max_time_s)
        what = f"{wished.time} is more than {where} allows, {most}: it would never start"
        way_out = f"write {most}; a run that takes longer goes on in its next job"
        yield Remark("slurm.time", what, way_out, is_sure)
    if partition.max_nodes is not None and wished.nodes > partition.max_nodes:
        what = f"{wished.nodes} are more than {where} allows, {partition.max_nodes}"
        way_out = "fewer nodes, or another slurm.partition"
        yield Remark("slurm.nodes", f"{what}: it would never start", way_out, is_sure)
    if wished.nodes < partition.min_nodes:
        what = f"{wished.nodes} are fewer than {where} wants, {partition.min_nodes}"
        way_out = "more nodes, or another slurm.partition"
        yield Remark("slurm.nodes", f"{what}: it would never start", way_out, is_sure)
    if partition.state != "UP":
        what = f"{where} is {partition.state}: the job waits until that changes"
        yield Remark("slurm.partition", what, "sinfo shows the others")


def _stops(wished: Slurm, site: Site, stop_s: float | None) -> Iterator[Remark]:
    mode, where = site.preempt_mode, f"partition {site.partition.name}"
    grace_s, kill_wait_s = site.grace_time_s, site.config.kill_wait_s
    if mode == "CANCEL":
        yield _cancels(wished, where)
    if mode in ("CANCEL", "REQUEUE") and grace_s + kill_wait_s < (stop_s or ASSUMED_STOP_S):
        given = f"{where} preempts with {grace_s} s of grace, and {kill_wait_s} s to the kill"
        needs = "a save may take longer" if stop_s is None else f"the last stop took {stop_s:.0f} s"
        way_out = "set checkpoint.every_minutes: a save that does not fit is redone from there"
        yield Remark("slurm.partition", f"{given}; {needs}", way_out)
    if stop_s is not None and stop_s > wished.signal_lead_s:
        what = f"{wished.signal_lead_s} s before the limit are too few, a stop took {stop_s:.0f} s"
        yield Remark("slurm.signal_lead_s", what, f"write {2 * int(stop_s) + 1}")
    if not site.config.is_requeued and wished.restart != "successor":
        what = "jobs are requeued only if they ask for it here (JobRequeue=0): this one does"
        way_out = "slurm.restart=successor if it is refused all the same"
        yield Remark("slurm.restart", what, way_out)
    if site.partition.alloc_nodes != "ALL" and is_successor_wanted(wished, site):
        what = f"{where} takes jobs from {site.partition.alloc_nodes} only, perhaps not from a job"
        yield Remark("slurm.restart", what, "make resume goes on where no successor could")


def _cancels(wished: Slurm, where: str) -> Remark:
    what = f"{where} cancels what it preempts (PreemptMode=CANCEL)"
    if wished.restart == "requeue":
        return Remark("slurm.restart", what, "write auto: another job then goes on")
    return Remark("slurm.restart", what, "another job waits for its end and goes on")


def is_successor_wanted(wished: Slurm, site: Site) -> bool:
    """Whether a job that waits for the end of the first one is needed here, or asked for."""
    if wished.restart == "auto":
        return site.preempt_mode == "CANCEL"
    return wished.restart == "successor"


def slowest_stop_s(run_dir: RunDir) -> float | None:
    """How long the slowest stop of the run took, from its warning on; None before the first."""
    stops = [record.get("stop_s") for record in read_jsonl(run_dir.attempts)]
    return max((stop_s for stop_s in stops if stop_s is not None), default=None)


def note(run_dir: RunDir, wished: Slurm, sites: Sequence[Site]) -> dict[str, Any]:
    """Note in the run directory what its Slurm does with the run's jobs, if Slurm said it."""
    known = {
        "cancels_preempted": any(site.preempt_mode == "CANCEL" for site in sites),
        # From the warning of a preemption to SIGKILL; the trainer compares it with its saves.
        "preemption_s": min(
            (
                site.grace_time_s + site.config.kill_wait_s
                for site in sites
                if site.preempt_mode in ("CANCEL", "REQUEUE")
            ),
            default=None,
        ),
        "kill_wait_s": next((site.config.kill_wait_s for site in sites), KILL_WAIT_S),
        "slurmd_port": next((site.config.slurmd_port for site in sites), SLURMD_PORT),
        "partition_nodes": {
            site.partition.name: site.partition.nodes for site in sites if site.partition.nodes
        },
        "sites": [site.in_words() for site in sites],
        "remarks": [remark.in_one_line for remark in check(wished, sites)],
    }
    if sites:
        write_json(run_dir.site, known)
    return known
