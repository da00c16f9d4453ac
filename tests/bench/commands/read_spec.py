"""B17: seconds to parse and check a spec."""

from pathlib import Path

import yaml

from slurm_job_kit.jobs.config.load import load
from tests.bench.rounds import Figure, interleaved, milliseconds, ratio, timed
from tests.bench.start.local_run import REPOSITORY

CONFIGS = ("resnet", "gpt")


def measure(folder: Path) -> list[Figure]:
    """Seconds of yaml.SafeLoader, which checks nothing, and of all that the kit does.

    In one process, after the imports; `submit` has both times.
    """
    return [_figure(REPOSITORY / f"configs/{name}.yaml") for name in CONFIGS]


def _figure(path: Path) -> Figure:
    def alone() -> None:
        yaml.load(path.read_text(encoding="utf-8"), yaml.SafeLoader)

    times = interleaved(
        {"yaml": lambda: timed(alone), "kit": lambda: timed(lambda: load(path, []))}, rounds=29
    )
    own = milliseconds(times["kit"])
    what = f"{path.name}: yaml.SafeLoader alone / parsed and checked by the kit ({own})"
    return ratio(what, times["yaml"], times["kit"])
