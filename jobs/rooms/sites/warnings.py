"""What a site does with a run: four warnings before its job is queued, and a refusal."""

from collections.abc import Iterator, Sequence

from ...commands.queue import test_only
from ...errors import FailedError
from ...problems import Problem
from ...records.ended import read_attempts
from ...rundir import RunDir
from ...slurm import duration, refusals
from ...spec import Slurm, Spec
from .preemption import Site


def check(requested: Slurm, sites: Sequence[Site], stop_s: float | None = None) -> list[Problem]:
    """Return the warnings. stop_s: how long the run's last stop took; None before the first."""
    found = (each for site in sites for each in _warnings(requested, site, stop_s))
    return list(dict.fromkeys(found))


def _warnings(requested: Slurm, site: Site, stop_s: float | None) -> Iterator[Problem]:
    where, most_s = f"partition {site.partition.name}", site.partition.max_time_s
    if most_s is not None and duration.parse_or_zero(requested.time) > most_s:
        most = duration.canonical(most_s)
        what = f"{requested.time} is above the limit of {where}, {most}: the job may never start"
        yield _warning("time", what, f"write {most}; a longer run continues in its next job")
    if requested.is_exclusive and requested.cpus_per_task == 1:
        what = "with --exclusive the job has whole nodes, and all ranks of a node share one core"
        yield _warning("cpus_per_task", what, "write how many: sinfo -o '%P %c' lists them")
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


def refuse_too_large(spec: Spec, run_dir: RunDir, sites: Sequence[Site]) -> None:
    """Raises FailedError for more nodes than the partition has, if Slurm itself refuses the job.

    Slurm may queue such a job, which never starts.
    """
    fewest = spec.slurm.fewest_job_nodes
    if not (sites and all(0 < each.partition.nodes < fewest for each in sites)):
        return
    is_accepted, words = test_only(spec, run_dir)
    if is_accepted is False:
        text = f"Slurm refuses the job, nothing is queued\n{words}"
        raise FailedError(f"{text}\n  hint: {refusals.hint(words)}")
