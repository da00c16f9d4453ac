"""Finds and reads the logs of one rank: a file for each attempt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slurm_job_kit.jobs import log_text
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


def count_lines(path: Path, most: int) -> int:
    """The number of lines of a file; of a longer one `most`."""
    return len(log_text.read_end(path, most).lines)


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
        self.offset = log_text.start_of_last(self.path, lines)
