"""Finds the line of the user's code that a traceback shows."""

import contextlib
import os
import re
from pathlib import Path

from ..base import installation
from ..contract.rundir import RunDir

# A frame of a Python traceback.
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)', re.MULTILINE)


def users_frame(trace: str, run_dir: RunDir, checkout: Path | None) -> str | None:
    """Return `FILE:LINE` of a traceback's last frame in the user's own files; None without one.

    checkout: where the frozen code was taken. A file that is still there stands for its frozen
    copy: the user edits that one.
    """
    for name, line in reversed(_FRAME.findall(trace)):
        if name.startswith("<"):  # `python -c`, or code of no file
            continue
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # what is no path
            if (path := _users_file(Path(name), run_dir, checkout)) is not None:
                return f"{path}:{line}"
    return None


def _users_file(path: Path, run_dir: RunDir, checkout: Path | None) -> Path | None:
    """Return the user's file of a path; None for a file of the kit or of a package."""
    folders = (run_dir.code.resolve(), run_dir.work.resolve())
    path = Path(os.path.normpath(folders[0] / path)).resolve()
    homes = (run_dir.kit.resolve() / installation.NAME, installation.HOME)
    of_kits = [home / part for home in homes for part in installation.PARTS]
    if "site-packages" in path.parts or any(path.is_relative_to(each) for each in of_kits):
        return None
    folder = next((each for each in folders if path.is_relative_to(each)), None)
    if folder is None:
        return path if checkout is not None and path.is_relative_to(checkout) else None
    original = None if checkout is None else checkout / path.relative_to(folder)
    return original if original is not None and original.is_file() else path
