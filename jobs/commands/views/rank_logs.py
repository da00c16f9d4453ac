"""Finds and reads the logs of one rank: a file for each attempt."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from ... import shared_files
from ...rundir import RunDir
from ...runs import fact_reader

BLOCK_BYTES = 1 << 20
_DECODER = codecs.getincrementaldecoder("utf-8")


def attempts_with(run_dir: RunDir, rank: int) -> list[int]:
    """Return the numbers of the attempts that have a log of this rank, oldest first."""
    newest = fact_reader.newest_opened(run_dir)
    logs = {n: run_dir.attempt(n).rank_log(rank) for n in range(1, newest + 1)}
    return [n for n, log in logs.items() if shared_files.exists(log)]


def ranks_of(run_dir: RunDir) -> list[int]:
    """Return the ranks that have a log in the newest attempt."""
    folder = run_dir.attempt(fact_reader.newest_opened(run_dir)).path
    matches = (re.fullmatch(r"rank-(\d+)\.log", name) for name in shared_files.names_in(folder))
    return sorted(int(match[1]) for match in matches if match)


@dataclass
class GrowingFile:
    """A file that another process, perhaps on another host, appends to or replaces."""

    path: Path
    offset: int = 0
    inode: int | None = None
    _decoder: codecs.IncrementalDecoder = field(default_factory=lambda: _DECODER("replace"))

    def read(self) -> Iterator[bytes]:
        """Yield what is new. A file that is shorter now, or another one, is read from its begin.

        The file is opened again each time: a network file system shows new content only then.
        """
        try:
            file = shared_files.open_binary(self.path)
        except FileNotFoundError:
            return
        with file:
            status = os.fstat(file.fileno())
            if status.st_size < self.offset or self.inode not in (None, status.st_ino):
                self.offset = 0
            self.inode = status.st_ino
            file.seek(self.offset)
            while block := file.read(BLOCK_BYTES):
                self.offset += len(block)
                yield block

    def copy_to(self, stream: TextIO) -> None:
        """Write what is new to a stream."""
        for block in self.read():
            stream.write(self._decoder.decode(block))
        stream.flush()
