"""Finds and reads the logs of one rank: a file for each attempt."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slurm_job_kit.jobs.attempt import facts
from slurm_job_kit.jobs.rundir import RunDir

BLOCK_BYTES = 1 << 20


def attempts_with(run_dir: RunDir, rank: int) -> list[int]:
    """The numbers of the attempts that have a log of this rank, oldest first."""
    newest = facts.newest_opened(run_dir)
    return [n for n in range(1, newest + 1) if run_dir.attempt(n).rank_log(rank).exists()]


def ranks_of(run_dir: RunDir) -> list[int]:
    """The ranks that have a log in the newest attempt."""
    folder = run_dir.attempt(facts.newest_opened(run_dir)).path
    found = (re.fullmatch(r"rank-(\d+)\.log", path.name) for path in folder.glob("rank-*.log"))
    return sorted(int(match[1]) for match in found if match)


def _start_of(path: Path, last_lines: int) -> int:
    """The offset at which the last lines of a file begin; a last line may lack its newline."""
    with open(path, "rb") as file:
        position = file.seek(0, os.SEEK_END)
        ends, size = 0, position
        while position > 0 and last_lines:
            begin = max(0, position - BLOCK_BYTES)
            file.seek(begin)
            block = file.read(position - begin)
            at = len(block)
            while (at := block.rfind(b"\n", 0, at)) >= 0:
                if begin + at + 1 == size:
                    continue  # it ends the last line
                ends += 1
                if ends == last_lines:
                    return begin + at + 1
            position = begin
        return 0 if last_lines else size


def count_lines(path: Path, most: int) -> int:
    """The number of lines of a file; of a longer one `most`. Raises: OSError."""
    with open(path, "rb") as file:
        file.seek(_start_of(path, most))
        return sum(1 for _ in file)


@dataclass
class GrowingFile:
    """A file that another process, perhaps on another host, appends to or replaces."""

    path: Path
    offset: int = 0
    inode: int | None = None

    def read(self) -> Iterator[bytes]:
        """Yield what is new. A file that is shorter now, or another one, is read from its begin.

        The file is opened again each time: a network file system may show new content only then.
        """
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return
        if found.st_size < self.offset or self.inode not in (None, found.st_ino):
            self.offset = 0
        self.inode = found.st_ino
        if found.st_size == self.offset:
            return
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            while block := file.read(BLOCK_BYTES):
                self.offset += len(block)
                yield block

    def skip_to_last(self, lines: int) -> None:
        """Let the next read begin at the last lines. Raises: OSError."""
        self.offset = _start_of(self.path, lines)
