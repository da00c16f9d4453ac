"""What a site does with a run: three warnings at submit, and the record site.json.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .. import records
from ..problems import Problem
from ..records.ended import read_attempts
from ..records.queued import SlurmSite
from ..rundir import RunDir
from ..spec import Slurm
from . import duration
from .site import KILL_WAIT_S, SLURMD_PORT, Site


def check(requested: Slurm, sites: Sequence[Site], stop_s: float | None = None) -> list[Problem]:
    """Return the warnings.

    sites: one for each partition that the spec names. stop_s: how long the run's last stop took;
    None before the first one.
    """
    problems = [problem for site in sites for problem in _warnings(requested, site, stop_s)]
    return list(dict.fromkeys(problems))


def _warnings(requested: Slurm, site: Site, stop_s: float | None) -> Iterator[Problem]:
    where, most_s = f"partition {site.partition.name}", site.partition.max_time_s
    if most_s is not None and duration.parse_or_zero(requested.time) > most_s:
        most = duration.canonical(most_s)
        what = f"{requested.time} is above the limit of {where}, {most}: the job may never start"
        yield _warning("time", what, f"write {most}; a longer run continues in its next job")
    if site.preemption_s is not None and stop_s is not None and site.preemption_s < stop_s:
        what = f"{where} kills what it preempts after {site.preemption_s} s"
        hint = "set checkpoint.every_minutes: the next attempt repeats the steps after that save"
        yield _warning("partition", f"{what}, and the last stop took {stop_s:.0f} s", hint)
    if site.preempt_mode == "CANCEL" and requested.restart != "successor":
        what = f"{where} cancels what it preempts (PreemptMode=CANCEL), it requeues nothing"
        then = "a successor job waits for the end of the job and continues the run"
        is_auto = requested.restart == "auto"
        yield _warning("restart", what, then if is_auto else f"write auto: {then}")


def _warning(key: str, what: str, hint: str) -> Problem:
    """Return a warning about a key of the section slurm."""
    return Problem(("slurm", key), what, hint, is_error=False)


def last_stop_s(run_dir: RunDir) -> float | None:
    """Return how long the run's last stop took since its warning; None before the first."""
    stops = (record.times.stop_s for record in reversed(read_attempts(run_dir)))
    return next((stop_s for stop_s in stops if stop_s is not None), None)


def record_site(run_dir: RunDir, requested: Slurm, sites: Sequence[Site]) -> SlurmSite:
    """Return what this Slurm does with the run's jobs; writes site.json if Slurm answered.

    sites: from `jobs.slurm.site.query`; empty if Slurm did not answer.
    """
    known = SlurmSite(
        cancels_preempted=any(site.preempt_mode == "CANCEL" for site in sites),
        preemption_s=min(
            (site.preemption_s for site in sites if site.preemption_s is not None), default=None
        ),
        kill_wait_s=next((site.config.kill_wait_s for site in sites), KILL_WAIT_S),
        slurmd_port=next((site.config.slurmd_port for site in sites), SLURMD_PORT),
        cluster=next((site.config.cluster for site in sites if site.config.cluster), None),
        qos=next((site.qos_name for site in sites), None),
        remarks=tuple(problem.in_one_line for problem in check(requested, sites)),
    )
    if sites:
        records.write(run_dir.site, known)
    return known
