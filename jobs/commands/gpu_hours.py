"""How many GPU hours a start of a job asks for, and the confirmation above the user's limit."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from ..console import print_line, quantity
from ..errors import FailedError, UserError
from ..slurm import duration
from ..spec import Slurm

LIMIT = "KIT_CONFIRM_GPU_HOURS"


def confirm(sections: Sequence[Slurm], is_confirmed: bool) -> None:
    """Print what the jobs ask for; above the limit of the user, ask on a terminal.

    sections: that of each job, all of which are queued together.
    Raises: UserError for more than the limit without a terminal; FailedError for a no.
    """
    alike: dict[str, list[Slurm]] = {}
    for section in sections:
        alike.setdefault(format_request(section), []).append(section)
    for group in alike.values():
        print_line(format_request(group[0], len(group)))
    limit, hours = limit_of(os.environ), sum(map(gpu_hours, sections))
    if limit is None or hours <= limit or is_confirmed:
        return
    what = f"{_number(hours)} GPU hours are above {LIMIT}={_number(limit)}"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UserError(f"{what}\n  hint: repeat it with --yes (make: YES=1)")
    print(f"{what}. Submit? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise FailedError("nothing is queued\n  hint: lower slurm.time or slurm.nodes, perhaps")


def format_request(requested: Slurm, num_jobs: int = 1) -> str:
    """Return how many GPU hours are requested; core hours where no GPU is requested.

    `asks for at most 32 GPU hours: 2 nodes x 8 GPUs x 2:00:00; each restart again up to that`.
    """
    gpus = requested.num_gpus
    size, noun = (gpus, "GPU") if gpus else (requested.cpus_per_task, "core")
    hours = num_jobs * _node_hours(requested) * size
    parts = [quantity(num_jobs, "job")] if num_jobs > 1 else []
    parts += [quantity(requested.job_nodes, "node"), quantity(size, noun), requested.time]
    number = _number(hours)
    unit = "hour" if number == "1" else "hours"
    line = f"asks for at most {number} {noun} {unit}: {' x '.join(parts)}"
    if requested.max_restarts:
        line += f"; each restart again up to that (slurm.max_restarts={requested.max_restarts})"
    return line


def gpu_hours(requested: Slurm) -> float:
    """Return the GPU hours of one start that lasts until its time limit."""
    return _node_hours(requested) * requested.num_gpus


def limit_of(environ: Mapping[str, str]) -> float | None:
    """Return the GPU hours above which a submit needs a confirmation; None without a limit.

    Raises: UserError for a value that is no number.
    """
    text = environ.get(LIMIT, "").strip()
    if not text:
        return None
    try:
        limit = float(text)
    except ValueError:
        limit = -1.0
    if not limit >= 0:
        raise UserError(f"{LIMIT}={text} is no number of hours\n  hint: export {LIMIT}=500")
    return limit


def _node_hours(requested: Slurm) -> float:
    return requested.job_nodes * duration.parse_or_zero(requested.time) / 3600


def _number(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"
