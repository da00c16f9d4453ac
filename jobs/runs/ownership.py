"""Whose the files of a run are, and which modes the folders get that the kit makes.

What a run executes belongs to the user who runs it, or to root, and others may not write it.
slurm/ddp.sbatch and slurm/agent.sh ask the same before they run its first line. Standard library
only.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from .. import installation, shared_files
from ..console import user_name
from ..errors import UserError
from ..rundir import RunDir, make_folder

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
SHARED = stat.S_ISGID | stat.S_IWGRP  # a runs root of a group: chmod 2770


def problem_of(path: Path, is_link_followed: bool = False) -> str | None:
    """Return why nothing of a file, link or folder may be executed. Raises: FileNotFoundError."""
    status = path.stat() if is_link_followed else path.lstat()
    if status.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to user {user_name(status.st_uid)}"
    if not stat.S_ISLNK(status.st_mode) and status.st_mode & OTHERS_WRITE:
        return f"other users may write {path} (mode {status.st_mode & 0o777:o})"
    return None


def problem(run_dir: RunDir) -> str | None:
    """Return why this user must not execute what a run has; None also for what is missing."""
    for path in _executed(run_dir):
        shared_files.ask_again(path)  # a resume on another host may have replaced it
    return next(_problems(run_dir), None)


def texts_of(run_dir: RunDir) -> tuple[Path, ...]:
    """Return the files with what the run executes, and those of which a resume makes them."""
    made_of = (run_dir.spec_yaml, run_dir.overrides, run_dir.provenance)  # it has the interpreter
    return (run_dir.spec, run_dir.setup, *made_of)


def _executed(run_dir: RunDir) -> tuple[Path, ...]:
    return (*texts_of(run_dir), run_dir.code, run_dir.kit)


def _problems(run_dir: RunDir) -> Iterator[str]:
    for path in _executed(run_dir):
        with contextlib.suppress(FileNotFoundError):
            found = problem_of(path)
            if found is None and path.is_symlink():
                found = problem_of(path, is_link_followed=True)
                if path in texts_of(run_dir):
                    found = f"{path} is a link"
            if found is not None:
                yield found


def check(run_dir: RunDir) -> None:
    """Raises UserError for a run that has something to execute which may not be this user's."""
    if (found := next(_problems(run_dir), None)) is not None:
        resume = installation.command("resume", str(run_dir.path))
        raise UserError(
            f"{found}, and the run would execute it\n  hint: {resume} asks, and makes it your own; "
            "a disk that keeps no permissions can have no runs: set runs_root to another"
        )


def set_mode(path: Path, mode: int) -> None:
    """Give a folder a mode. It keeps setgid, so that its files get the group of the runs root."""
    os.chmod(path, mode | path.stat().st_mode & stat.S_ISGID)


def make_shared(folder: Path, mode: int) -> None:
    """Make a folder in which runs of several users may lie, unless there is one.

    mode: dir_mode of a run. Only the owner may write to the folder, or the group where that shares
    the folder around it. Raises: OSError, also for a link of another user.
    """
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        make_folder(folder)
        return
    around = folder.parent.stat().st_mode
    of_group = stat.S_IRWXG if around & SHARED == SHARED else 0
    set_mode(folder, mode & ~OTHERS_WRITE | of_group)


def check_open(folder: Path) -> None:
    """Raises UserError for a folder, if it exists, in which this user may make no runs."""
    if not os.access(folder, os.W_OK | os.X_OK) and folder.is_dir():
        user = user_name(folder.stat().st_uid)
        group = folder.parent.stat().st_gid
        raise UserError(
            f"{folder} is closed to you: user {user} owns it\n  hint: user {user} shares it with "
            f"chgrp {group} {folder}; chmod 2770 {folder}. Or take another name, or runs_root"
        )


def share(run_dir: RunDir) -> None:
    """Let whom dir_mode lets in change what this process writes from now on, whatever its umask.

    Not what is replaced as a whole, such as spec.json: `rundir.write_durable`.
    """
    with contextlib.suppress(FileNotFoundError):  # the next reader of the run names it
        let_in = run_dir.path.stat().st_mode & stat.S_IRWXG
        os.umask(os.umask(0o077) & ~let_in)
