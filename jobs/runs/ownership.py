"""Whose a run is, and which modes the folders get that the kit makes.

A run directory is written by its owner only. What a job runs belongs to its user, or to root, and
others may not write it. slurm/ddp_prepare.sh asks so of the run directory, code and kit, before it
runs a line of them; slurm/agent.sh also of spec.json and setup.sh. Standard library only.
"""

import contextlib
import os
import stat
from pathlib import Path

from ..base import files
from ..base.console import user_name
from ..base.errors import UserError
from ..contract.rundir import RunDir

SHARED = stat.S_ISGID | stat.S_IWGRP  # a runs root of a group: chmod 2770


def problem_of(folder: Path) -> str | None:
    """Return why nothing in a folder may be executed. Raises: FileNotFoundError."""
    status = folder.stat()
    if status.st_uid not in (0, os.geteuid()):
        return f"{folder} belongs to user {user_name(status.st_uid)}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users may write {folder} (mode {status.st_mode & 0o777:o})"
    return None


def check(run_dir: RunDir) -> None:
    """Raises UserError for a run of another user, or that others may write."""
    for folder in (run_dir.path, run_dir.code, run_dir.kit):
        files.ask_again(folder)  # a resume on another host may have replaced it
        files.ask_again(Path(os.path.realpath(folder)))
        with contextlib.suppress(FileNotFoundError):  # the next reader of the run names it
            if found := problem_of(folder):
                hint = "begin one of your own from its newest checkpoint: submit ... --from "
                hint += f"{run_dir.path}. Of your own: chmod go-w; a disk that keeps no "
                hint += "permissions can have no runs (runs_root)"
                raise UserError(f"{found}, and only its owner continues a run", hint)


def set_mode(path: Path, mode: int) -> None:
    """Give a folder a mode. It keeps setgid, so that its files get the group of the runs root."""
    os.chmod(path, mode | path.stat().st_mode & stat.S_ISGID)


def make_shared(folder: Path, mode: int) -> None:
    """Make a folder in which runs of several users may lie, unless there is one.

    mode: dir_mode of a run. Only the owner may write to the folder, or the group where that shares
    the folder around it. Raises: OSError.
    """
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        return
    around = folder.parent.stat().st_mode
    of_group = stat.S_IRWXG if around & SHARED == SHARED else 0
    set_mode(folder, mode | of_group)
