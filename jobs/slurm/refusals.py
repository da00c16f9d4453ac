"""Names the keys of a spec that Slurm's message of a refused job is about.

Slurm names neither the key nor always the option: "Requested node configuration is not available".
Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurm_job_kit.jobs.problems import Problem, shown
from slurm_job_kit.jobs.spec import Slurm

# Slurm's messages (measured: sbatch of 22.05), and the keys that can cause each. The first that
# fits decides: the message about memory comes before a second one about the configuration.
_CAUSES = (
    (r"Memory specification|--mem\b", ("mem",)),
    (r"node configuration is not available", ("nodes", "cpus_per_task", "mem", "exclude")),
    (r"generic resource|--gpus-per-node\b", ("gpus_per_node",)),
    (r"Invalid node name", ("exclude",)),
    (r"Invalid feature", ("constraint",)),
    (r"--time\b", ("time",)),
)
_HINTS = {
    "nodes": "sinfo --summarize lists the number of nodes",
    "cpus_per_task": "sinfo --format='%P %c' lists the cores of a node",
    "mem": "sinfo --format='%P %m' lists the memory of a node in MiB",
    "gpus_per_node": "sinfo --format='%P %G' lists the GPUs of a node",
    "exclude": "sinfo --Node lists the names of the nodes",
    "constraint": "sinfo --format='%P %f' lists the features of nodes",
    "time": "sinfo --format='%P %l' lists the time limits",
}


def problems(message: str, requested: Slurm) -> list[Problem]:
    """Return a problem for each key of the spec that may be the cause of Slurm's message.

    message: what sbatch printed, without its command line, in which options stand, too.
    Keys that have their default value are left out. Empty for a message that is not known here.
    """
    return [*_keys(message, requested), *_options(message, requested)]


def _keys(message: str, requested: Slurm) -> Iterator[Problem]:
    found = (names for pattern, names in _CAUSES if re.search(pattern, message))
    for name in next(found, ()):
        value = getattr(requested, name)
        if value != getattr(Slurm(), name):
            what = f"Slurm refuses the job, perhaps for {shown(value)}"
            yield Problem(("slurm", name), what, _HINTS[name])


def _options(message: str, requested: Slurm) -> Iterator[Problem]:
    """Options that the message names: `--licenses`, or as a word, such as "license"."""
    for name in requested.sbatch_args:
        word = re.escape(name.removesuffix("s"))
        if re.search(rf"\b{word}", message, re.IGNORECASE):
            what = f"Slurm refuses the job, perhaps for {shown(requested.sbatch_args[name])}"
            yield Problem(("slurm", "sbatch_args", name), what, "man sbatch lists the options")
