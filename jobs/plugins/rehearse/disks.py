"""The disks that a SIGKILL in a save can leave, from what the ranks recorded in it."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .final_state import of_training

# Lines are appended to these in each step: that alone makes no other disk.
LOGS = (".log", ".csv", ".tsv", ".jsonl")
SQLITE = b"SQLite format 3\0"  # it repairs itself after a kill, by its journal


class Entry(NamedTuple):
    """A file, link or folder: its mode, content and time in ns.

    content: the name of the copy, or where the link leads.
    """

    mode: int
    content: str
    size: int
    mtime: int
    inode: int

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def shown(self) -> tuple[int, str, int]:
        """What a reader sees of it."""
        return stat.S_IFMT(self.mode), self.content, self.size


Files = Mapping[str, Entry]


@dataclass(frozen=True)
class Disk:
    """What lies in the folder of a run at a moment, in seconds since 1970.

    what: what was done last. copies: the folder of the contents.
    """

    what: str
    t: float
    files: Files
    copies: Path

    def restore(self, place: Path) -> None:
        for name in sorted(self.files):
            entry, path = self.files[name], place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if stat.S_ISDIR(entry.mode):
                path.mkdir(exist_ok=True)
            elif entry.is_file:
                shutil.copyfile(self.copies / entry.content, path)
                os.truncate(path, entry.size)
                path.chmod(stat.S_IMODE(entry.mode))
                os.utime(path, ns=(entry.mtime, entry.mtime))
            else:
                path.symlink_to(entry.content)

    @property
    def shown(self) -> frozenset[tuple[str, tuple[int, str, int]]]:
        """What a start sees of it."""
        names = (name for name in self.files if not _is_beside(name))
        return frozenset((name, self.files[name].shown) for name in names)


def _is_beside(name: str) -> bool:
    """Return whether it is a log, or what the kit records of a start."""
    is_log = name.endswith(LOGS) or Path(name).name.startswith("events.out.tfevents")
    return is_log or not of_training(name)


def of_save(folder: Path) -> list[Disk]:
    """Return the disks of a recorded save in their order, each other than the one before."""
    records = []
    for path in sorted(folder.glob("*.json")):
        values = json.loads(path.read_text(encoding="utf-8"))
        entries = {name: Entry(*fields) for name, fields in values.pop("files").items()}
        records.append((values, entries))
    if not records:
        return []
    opened = {values["opened"] for values, _ in records}
    first, before = records[0]
    disks = [Disk("nothing is written yet", first["t"], before, folder)]
    for values, after in records[1:]:
        for what, files in _between(before, after, opened, folder):
            disk = Disk(what, values["t"], files, folder)
            if disk.shown != disks[-1].shown:
                disks.append(disk)
        before = after
    return disks


def _between(
    before: Files, after: Files, opened: set[str], copies: Path
) -> Iterator[tuple[str, Files]]:
    """Yield what a kill between two records can leave, up to the second one.

    A file that Python or torch `opened` to write, or that keeps its inode, is written by and by.
    All else is one step: Python reports it before it happens, and a record comes before each.
    """
    files, step = dict(before), ""
    inodes = {each.inode for each in before.values()}
    new = [name for name in after if name not in before or before[name].shown != after[name].shown]
    names = [name for name in new if not _is_beside(name)]
    for name in sorted(names, key=lambda name: after[name].mtime):
        entry, old = after[name], before.get(name)
        is_same = old is not None and old.inode == entry.inode
        how = "renamed" if entry.inode in inodes and not is_same else "written"
        if how == "renamed" or not entry.is_file or not (is_same or name in opened):
            step = step or f"{of_training(name)} is {how}"
            continue
        for what, size in (("is empty", 0), ("is half written", entry.size // 2)):
            if size < entry.size and not _is_kept(old, entry, copies):
                yield f"{of_training(name)} {what}", {**files, name: entry._replace(size=size)}
        files[name] = entry
        yield f"{of_training(name)} is written", dict(files)
    gone = min(before.keys() - after.keys(), default="")
    yield step or f"{of_training(gone)} is removed", after


def _is_kept(old: Entry | None, entry: Entry, copies: Path) -> bool:
    """Return whether a file keeps what it had: lines are appended, or it is a data base."""
    with (copies / entry.content).open("rb") as new:
        if new.read(len(SQLITE)) == SQLITE:
            return True
        if old is None or not old.is_file or not 0 < old.size <= entry.size:
            return False
        new.seek(0)
        return new.read(old.size) == (copies / old.content).read_bytes()


def likeliest_first(disks: Sequence[Disk]) -> list[Disk]:
    """Return each other disk once, after the first and the last one those that rather fail.

    First those with a file that neither of both has, then mixes of both, then those with other
    files, such as temporary ones.
    """
    ends = [dict(disk.shown) for disk in (disks[0], disks[-1])]
    names = {name for name in {**ends[0], **ends[1]} if ends[0].get(name) != ends[1].get(name)}

    def place(disk: Disk) -> int:
        shown = dict(disk.shown)
        are_new = {shown.get(name) == ends[1].get(name) for name in names}
        is_odd = any(shown.get(name) not in (end.get(name) for end in ends) for name in names)
        is_end = shown in ends
        return 0 if is_end else 1 if is_odd else 2 if len(are_new) > 1 else 3

    unlike: dict[frozenset[tuple[str, tuple[int, str, int]]], Disk] = {}
    for disk in disks:
        unlike.setdefault(disk.shown, disk)
    return sorted(unlike.values(), key=place)
