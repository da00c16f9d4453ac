"""The run directory: every path in it, and the few ways in which files there are written.

One writer per file, no locks: network file systems keep neither promise for several (facts of
NFS: appends interleave, flock lies). Standard library only; the trainer imports this module.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

PROGRESS_STEP_WIDTH = 12


@dataclass(frozen=True)
class RunDir:
    """The paths of one run, below `<runs_root>/<name>/<run_id>`."""

    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def spec(self) -> Path:
        return self.path / "spec.json"

    @property
    def spec_yaml(self) -> Path:
        return self.path / "spec.yaml"

    @property
    def overrides(self) -> Path:
        """The `KEY=VALUE` overrides of `spec_yaml`, a list."""
        return self.path / "overrides.json"

    @property
    def changes(self) -> Path:
        """What a resume changed of the spec, one confirmed change a line."""
        return self.path / "changes.jsonl"

    @property
    def code(self) -> Path:
        return self.path / "code"

    @property
    def setup(self) -> Path:
        return self.path / "setup.sh"

    @property
    def provenance(self) -> Path:
        return self.path / "provenance.json"

    @property
    def command(self) -> Path:
        return self.path / "command.json"

    @property
    def owner(self) -> Path:
        return self.path / "owner.json"

    @property
    def site(self) -> Path:
        """What the Slurm that the run was submitted to does with preempted jobs."""
        return self.path / "site.json"

    @property
    def successor(self) -> Path:
        """The job that waits for the end of the present one, to go on with the run."""
        return self.path / "successor.json"

    @property
    def attempts(self) -> Path:
        return self.path / "attempts.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def progress(self) -> Path:
        return self.path / "progress"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def wandb(self) -> Path:
        """Made by W&B itself, in the directory that it is given."""
        return self.path / "wandb"

    @property
    def profile(self) -> Path:
        return self.path / "profile"

    @property
    def compile_cache(self) -> Path:
        return self.path / "compile-cache"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def job_log(self) -> Path:
        return self.path / "job.log"

    @property
    def submitit(self) -> Path:
        return self.path / "submitit"

    def attempt(self, attempt: int) -> AttemptDir:
        return AttemptDir(self.path / f"attempt-{attempt}")

    def rank_log(self, rank: int) -> Path:
        """The stable link to the newest attempt's log of a global rank."""
        return self.path / "logs" / f"rank-{rank:05d}.log"

    def timeline(self, writer: str) -> Path:
        return self.path / "timeline" / f"{writer}.jsonl"


@dataclass(frozen=True)
class AttemptDir:
    """The paths of one attempt K, below `RUN_DIR/attempt-K`."""

    path: Path

    @property
    def plan(self) -> Path:
        """What `attempt open` decided: nodes, endpoint, rendezvous id. Read by every agent."""
        return self.path / "plan.json"

    @property
    def srun_argv(self) -> Path:
        """What the spec adds to the batch script's srun, NUL-separated: no value is re-split."""
        return self.path / "srun.argv"

    @property
    def outcome(self) -> Path:
        """Rank 0's last word: `{"status": "completed" | "stopped", "global_step": ...}`."""
        return self.path / "outcome.json"

    @property
    def stop(self) -> Path:
        """Created by every agent that is warned; a script of one's own may look for it."""
        return self.path / "stop"

    def node(self, node_rank: int) -> Path:
        """An agent's last word: the signals it saw and how its torchrun ended."""
        return self.path / f"node-{node_rank:05d}.json"

    def node_records(self) -> list[dict[str, Any]]:
        """What all agents have written so far."""
        return list(filter(None, map(read_json, self.path.glob("node-*.json"))))

    def rank_log(self, rank: int) -> Path:
        return self.path / f"rank-{rank:05d}.log"

    def rank_error(self, rank: int) -> Path:
        """A failing rank's last word: time, host, error and traceback."""
        return self.path / f"rank-{rank:05d}.error.json"

    @property
    def hang(self) -> Path:
        """Made by the rank that finds a hang first, which calls the others; then its verdict."""
        return self.path / "hang.json"

    def rank_hang(self, rank: int) -> Path:
        """A rank's answer in a hang: where its main thread is."""
        return self.path / f"rank-{rank:05d}.hang.json"


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` as a whole and durably: a reader or a crash sees the old or the new text."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # a full disk needs every byte of it back
            temporary.unlink()
        raise
    fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_json(path: Path, value: Any) -> None:
    """`write_atomic` of a value as JSON."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """The value in a JSON file, or None where the file is missing."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def append_jsonl(path: Path, record: dict[str, Any], durable: bool = False) -> None:
    """Append one record as one line in a single write; a line that a crash cut off goes."""
    line = (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
    with open(path, "ab+") as file:
        if (end := _end_of_lines(file)) < file.seek(0, os.SEEK_END):
            file.truncate(end)
        file.write(line)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def _end_of_lines(file: BinaryIO) -> int:
    """Where the last whole line ends; usually that is the end of the file."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - 1))
    if file.read(1) in (b"", b"\n"):
        return end
    file.seek(0)
    return file.read().rfind(b"\n") + 1


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The records of a JSON-lines file; a last line cut off by a crash does not count."""
    try:
        # Not splitlines: it also ends a line at characters that JSON leaves as they are.
        *lines, _ = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of a timeline, without lines that make no sense: nothing is decided by them.

    An attempt that was cut off may write into the middle of its successor's once more.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    events = []
    for line in lines:
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict) and {"t", "event", "attempt"} <= event.keys():
                events.append(event)
    return events


def relink(link: Path, target: str) -> None:
    """Point a symbolic link at `target`, atomically."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    os.replace(temporary, link)


def read_progress_step(path: Path) -> int | None:
    """The last finished optimizer step in a `progress` file; None before the first."""
    try:
        with open(path, "rb") as file:
            return int(file.read(PROGRESS_STEP_WIDTH) or b"0")
    except (FileNotFoundError, ValueError):
        return None


class Timeline:
    """Wall-clock events of one writer, `timeline/<writer>.jsonl`."""

    def __init__(self, run_dir: RunDir, writer: str, attempt: int | None = None) -> None:
        self._path = run_dir.timeline(writer)
        self._attempt = attempt

    def event(self, name: str, **fields: Any) -> None:
        """Append `{"t": seconds since the epoch, "event": name, ...}`."""
        record = {"t": round(time.time(), 3), "event": name, "attempt": self._attempt, **fields}
        append_jsonl(self._path, record)
