"""The environment variables that no program started by the kit may inherit. Standard library only.

A name may have `*`, which stands for any text. A variable that no list names is passed on. A plugin
may remove more, by the hook `launch_command`. slurm/ddp_prepare.sh and slurm/agent.sh remove others
before a Python runs.
"""

import fnmatch
import os
import re
from collections.abc import Mapping
from enum import Enum
from functools import cache


class Program(Enum):
    """A kind of program that the kit starts; the value: the variables that it must not inherit."""

    # Slurm's clients, whose output the kit reads: filters and formats, and what a job asks for.
    READ = tuple(
        f"{client}_*"
        for client in ("SLURM", "SRUN", "SBATCH", "SQUEUE", "SINFO", "SACCT", "SCONTROL", "SCANCEL")
    )
    # Its output the kit reads, too. Not (): Python 3.11.2, that of Debian 12, makes it an object().
    GIT = ("GIT_DIR",)
    # sbatch, and so the job: what belongs to an enclosing job, and the job that this one succeeds.
    SBATCH = ("SLURM*", "SRUN_*", "KIT_SUCCEEDS")
    SRUN = ("SRUN_*",)  # srun in the batch script
    # The agents of a local run share out the GPUs of an allocation that surrounds it.
    LOCAL = (
        *("SLURM_GPUS_ON_NODE", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"),
        *("SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_GPUS"),
    )
    # torchrun and the ranks: what an enclosing torchrun set, and what this one takes for options.
    TORCHRUN = (
        *("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("TORCHELASTIC_*", "PET_*", "PYTHON_EXEC"),
    )


# Where Slurm is, and who the user is.
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_ROOT", "SLURM_HOME")
# The name of a socket has 107 bytes, and Python's multiprocessing adds 32 to that of the folder.
# Source: unix(7); multiprocessing.connection.arbitrary_address.
MAX_TMPDIR = 60


@cache
def pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of names in which `*` stands for any text."""
    return re.compile("|".join(fnmatch.translate(name) for name in names))


def without(environ: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    removed = pattern(names)
    return {
        name: value
        for name, value in environ.items()
        if name in _KEPT or not removed.fullmatch(name)
    }


def for_reading(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program whose output the kit reads: in English.

    Slurm's times in seconds since the epoch, because its own format has no time zone.
    With the job's id and its number of starts, for which a site's wrapper of scontrol may ask.
    """
    names = {"SLURM_JOB_ID", "SLURM_RESTART_COUNT"} & environ.keys()
    kept = {name: environ[name] for name in names}
    return without(environ, Program.READ.value) | kept | {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}


def temporary_folder(environ: Mapping[str, str]) -> str:
    """Return TMPDIR; /tmp where it is unset, too long for sockets, or cannot be written here."""
    folder = environ.get("TMPDIR", "")
    is_usable = os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)
    return folder if is_usable and len(os.fsencode(folder)) <= MAX_TMPDIR else "/tmp"
