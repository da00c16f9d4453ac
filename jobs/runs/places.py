"""Finds files of the user's code: the line that a traceback shows, and a missing module."""

import contextlib
import itertools
import os
import re
from pathlib import Path

from .. import installation
from ..known_causes import PLAIN
from ..rundir import RunDir

# A frame of a Python traceback.
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)', re.MULTILINE)
# The end of a traceback: file of the last frame, the statement below it, class of the error.
_END = re.compile(
    r'.*^\s*File "([^"]+)", line \d+[^\n]*\n\s*([^\n]*)\n(?:\s[^\n]*\n)*(\w+)(?::|$)',
    re.MULTILINE | re.DOTALL,
)
MAX_FOLDERS = 1000  # that are searched for a module, and the entries of each


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
    if "site-packages" in path.parts or _is_kits(path, run_dir):
        return None
    folder = next((each for each in folders if path.is_relative_to(each)), None)
    if folder is None:
        return path if checkout is not None and path.is_relative_to(checkout) else None
    original = None if checkout is None else checkout / path.relative_to(folder)
    return original if original is not None and original.is_file() else path


def _is_kits(path: Path, run_dir: RunDir) -> bool:
    """Return whether a resolved path is a file of the kit, also of a run's copy of it."""
    homes = (run_dir.kit.resolve() / installation.NAME, installation.HOME)
    parts = [home / part for home in homes for part in installation.PARTS]
    return any(path.is_relative_to(each) for each in parts)


def is_kits_fault(trace: str, run_dir: RunDir) -> bool:
    """Return whether a traceback ends in the kit, at a statement that does not raise on purpose.

    Where the kit raises an error itself, or a value is wrong, the code that called it is at fault.
    An error of a device may show anywhere.
    """
    end = _END.match(trace)
    if end is None or end[2].startswith("raise ") or end[3] not in PLAIN - {"ValueError"}:
        return False
    path = Path(end[1])
    return path.name == "kit_stop.py" or _is_kits(path.resolve(), run_dir)


def find_module(name: str, top: Path, runs_root: Path) -> Path | None:
    """Return the file or folder of a module below a folder, the nearest one; None without one."""
    inner, folders = Path(*name.split(".")), [top]
    for folder in folders:  # which grows
        for found in (folder / f"{inner}.py", folder / inner):
            if found.exists():
                return found
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            some = itertools.islice(entries, MAX_FOLDERS)  # a folder of data may have a million
            below = sorted(Path(each) for each in some if each.is_dir())
            own = [each for each in below if not each.name.startswith((".", "__"))]
            own = [x for x in own if x != runs_root and not (x / "pyvenv.cfg").exists()]
            folders += own[: MAX_FOLDERS - len(folders)]
    return None
