"""What a site does with a run: a warning before its job is queued, and a refusal."""

from collections.abc import Sequence

from ...commands.queue import test_only
from ...errors import FailedError
from ...problems import Problem
from ...rundir import RunDir
from ...slurm import refusals
from ...spec import Slurm, Spec
from .preemption import Site


def check(requested: Slurm, sites: Sequence[Site]) -> list[Problem]:
    """Return a warning for each partition or QOS that cancels the jobs that it preempts."""
    if requested.restart == "successor":
        return []
    names = dict.fromkeys(
        f"QOS {each.qos_name}" if each.qos_name else f"partition {each.partition.name}"
        for each in sites
        if each.preempt_mode == "CANCEL"
    )
    does = "cancels what it preempts (PreemptMode=CANCEL), it requeues nothing"
    then = "a successor job waits for the end of the job and continues the run"
    hint, key = then if requested.restart == "auto" else f"write auto: {then}", ("slurm", "restart")
    return [Problem(key, f"{name} {does}", hint, is_error=False) for name in names]


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
