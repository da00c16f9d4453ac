"""What a site does with a run: a warning before its job is queued."""

from collections.abc import Sequence

from ...contract.problems import Problem
from ...contract.spec import Slurm
from .preemption import Site


def check(requested: Slurm, sites: Sequence[Site]) -> list[Problem]:
    """Return a warning for each partition or QOS that cancels the jobs that it preempts."""
    if requested.restart == "successor":
        return []
    does = "cancels what it preempts (PreemptMode=CANCEL), it requeues nothing"
    then = "a successor job waits for the end of the job and continues the run"
    hint, key = then if requested.restart == "auto" else f"write auto: {then}", ("slurm", "restart")
    cancelling = (each.name for each in sites if each.preempt_mode == "CANCEL")
    return [Problem(key, f"{name} {does}", hint, is_error=False) for name in cancelling]
