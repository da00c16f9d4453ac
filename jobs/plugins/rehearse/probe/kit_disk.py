"""Records what lies in a folder at a moment: the disk that a SIGKILL at this moment would leave."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

MAX_BYTES = 4 << 30  # of the copies of one start
RECENT_NS = 100_000_000  # a file that was written just now may be written again at the same time

# Of each content its check sum and its size, by the inode, time and size of its file.
_known: dict[tuple[int, int, int], tuple[str, int]] = {}


def record(place: Path, folder: Path, opened: str = "") -> None:
    """Write a record of `place` to `folder`, and copies of the contents that are new.

    opened: the file that Python opens for writing now.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as lock:  # of other ranks and threads
        fcntl.flock(lock, fcntl.LOCK_EX)
        name = opened and os.path.relpath(os.path.realpath(opened), place)
        values = {"t": time.time(), "opened": name, "files": dict(_entries(place, folder))}
        (folder / f"{time.time_ns()}.json").write_text(json.dumps(values), encoding="utf-8")


def _entries(place: Path, folder: Path) -> Iterator[tuple[str, tuple[int | str, ...]]]:
    """Yield what lies in a folder by name, each with the fields of `disks.Entry`."""
    for root, folders, names in os.walk(place):
        folders[:] = [name for name in folders if name not in ("__pycache__", ".git")]
        for name in (*folders, *names):
            path = Path(root, name)
            with contextlib.suppress(FileNotFoundError):  # another rank has removed it
                found = path.lstat()
                content, size = "", 0
                if stat.S_ISLNK(found.st_mode):
                    content = os.readlink(path)
                elif stat.S_ISREG(found.st_mode):
                    content, size = _copied(path, found, folder)
                elif not stat.S_ISDIR(found.st_mode):
                    continue
                fields = (found.st_mode, content, size, found.st_mtime_ns, found.st_ino)
                yield str(path.relative_to(place)), fields


def _copied(path: Path, found: os.stat_result, folder: Path) -> tuple[str, int]:
    """Return the check sum and size of a file's content, which then has a copy of this name.

    Raises: FileNotFoundError; OSError if there is no plugin for it.
    """
    key = (found.st_ino, found.st_mtime_ns, found.st_size)
    if key in _known and time.time_ns() - found.st_mtime_ns > RECENT_NS:
        return _known[key]
    total, copy = hashlib.blake2b(digest_size=16), folder / "new"
    with path.open("rb") as source, copy.open("wb") as target:
        while chunk := source.read(1 << 20):
            total.update(chunk)
            target.write(chunk)
        size = target.tell()
    content = total.hexdigest()
    if not (folder / content).exists():
        held = sum(each.stat().st_size for each in folder.iterdir())
        if held > min(MAX_BYTES, shutil.disk_usage(folder).free):
            raise OSError(f"the copies of its files need more than {held >> 20} MiB")
        copy.rename(folder / content)
    _known[key] = content, size
    return content, size
