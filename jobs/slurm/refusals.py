"""Names the keys of a spec that Slurm's message of a refused job is about.

Slurm names neither the key nor always the option: "Requested node configuration is not available".
Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurm_job_kit.jobs.problems import Problem, shown
from slurm_job_kit.jobs.spec import Slurm

# Slurm's messages, and the keys that can cause each. The first that fits decides: a message about
# one resource comes before a second one about the whole configuration. Source: strings of the
# libraries and of slurmctld of Slurm 22.05.
_CAUSES = (
    (r"CPU count per node|Socket, core|More processors", ("cpus_per_task",)),
    (r"[Mm]emory (specification|required)|--mem(?![-\w])", ("mem",)),
    (r"[Ff]eature (requirements|specification)", ("constraint",)),
    (r"generic resource|GRES|TRES", ("gpus_per_node",)),
    (r"Invalid node name", ("exclude",)),
    (r"[Nn]ode count", ("nodes",)),
    (r"time limit", ("time",)),
    (r"accounting/QOS policy", ("nodes", "gpus_per_node", "cpus_per_task", "mem", "time")),
    (
        r"node configuration is not available",
        ("nodes", "gpus_per_node", "cpus_per_task", "mem", "constraint", "exclude"),
    ),
)
# Options whose message has another word than their name.
_WORDS = {"nodelist": "node name", "tmp": "temporary disk"}
# It stands before most messages, and `batch` is an option, too.
_PREFIX = "Batch job submission failed"
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
        word = _WORDS.get(name, name.removesuffix("s"))
        if re.search(rf"\b{re.escape(word)}", message.replace(_PREFIX, ""), re.IGNORECASE):
            what = f"Slurm refuses the job, perhaps for {shown(requested.sbatch_args[name])}"
            yield Problem(("slurm", "sbatch_args", name), what, "man sbatch lists the options")
