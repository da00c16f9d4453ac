"""Where the kit's own files are: in a clone of its repository, or where pip has installed them.

All code imports the package slurm_job_kit, because a user's repository may have packages `jobs` and
`trainer` of its own. In a clone its parts are links to the folders at the top.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

NAME = "slurm_job_kit"
DISTRIBUTION = "slurm-job-kit"  # for pip
# The folder in which Python finds the package. Resolved last: in a clone the parts are links.
ROOT = Path(__file__).absolute().parents[2].resolve()
PACKAGE = ROOT / NAME
IS_CLONE = (PACKAGE / "jobs").is_symlink()
# pip installs the commands as `kit`; in a clone each has a make target.
IS_BY_MAKE = IS_CLONE and Path(sys.argv[0]).name != "kit"


def is_in(folder: Path) -> bool:
    """Whether a folder has the kit: a clone, or the frozen code of one."""
    return (folder / NAME / "jobs/rundir.py").is_file()


def top_of(folder: Path) -> Path | None:
    """The top of the git repository that a folder lies in, found without git; None if in none."""
    return next((top for top in (folder, *folder.parents) if (top / ".git").exists()), None)


def override(change: str) -> str:
    """How the user types an override of the spec: `SET="train.lr=0.1"`, or `train.lr=0.1`."""
    return f'SET="{change}"' if IS_BY_MAKE else change


def command(name: str, run: str = "", change: str = "", *flags: str) -> str:
    """How the user types a command: `make resume RUN=x YES=1`, or `kit resume x --yes`.

    run: a run id, name or directory. change: an override. flags: names of options, such as `yes`.
    """
    is_run = "RUN=" if IS_BY_MAKE and run else ""
    typed = (f"{flag.upper()}=1" if IS_BY_MAKE else f"--{flag}" for flag in flags)
    words = [
        "make" if IS_BY_MAKE else "kit",
        name,
        is_run + (run and shlex.quote(run)),
        change and override(change),
        *typed,
    ]
    return " ".join(filter(None, words))
