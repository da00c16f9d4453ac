"""The run directory: the path of each file in it, and the functions that write these files.

Each file has one writer, and there are no locks: on a network file system appends of several
writers interleave, and flock may succeed for two hosts at once. jobs.contract.records has the
content of the files. Standard library only; the trainer imports this module.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..base import shared_files
from ..base.errors import RecordError

# The version of the run directory and its files; spec.json has it as the key `format`. Raised when
# this kit can no longer read the files of an older one, or an older kit those of this one.
FORMAT = 6
JOB_LOG = "job.log"


class File:
    """A path in a folder, by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: "RunDir | AttemptDir", _: type) -> Path:
        return folder.path / self._name


@dataclass(frozen=True)
class RunDir:
    """The paths of one run, below `<runs_root>/<name>/<run_id>`."""

    path: Path

    spec = File("spec.json")
    spec_yaml = File("spec.yaml")
    overrides = File("overrides.json")  # the `KEY=VALUE` overrides of spec_yaml, a list
    changes = File("changes.jsonl")  # of the spec, that a user confirmed at a resume: one per line
    revision = File("revision.json")  # a change by a resume, until it is done: jobs.runs.revision
    code = File("code")
    kit = File("kit")  # the frozen kit: a link to `code` where that is a clone of its repository
    work = File("work")  # working directory of a user's script or module, over all attempts
    setup = File("setup.sh")
    provenance = File("provenance.json")
    submission = File("submission.json")  # the job, and the sbatch command that submitted it
    owner = File("owner.json")
    cancelled = File("cancelled")  # by cancel: no job starts the run before resume deletes it
    site = File("site.json")  # settings of the Slurm of the run
    successor = File("successor.json")  # the job that waits for this one to end, and continues
    attempts = File("attempts.jsonl")
    checkpoints = File("checkpoints")
    metrics = File("metrics.jsonl")
    progress = File("progress.json")
    saved = File("saved.json")  # step of a script's newest checkpoint, as its kit_stop.py reports
    tensorboard = File("tensorboard")
    result = File("result.json")
    job_log = File(JOB_LOG)
    submitit = File("submitit")

    @property
    def run_id(self) -> str:
        return self.path.name

    def attempt(self, attempt: int) -> "AttemptDir":
        return AttemptDir(self.path / f"attempt-{attempt}")

    def rank_log(self, rank: int) -> Path:
        """Return the stable link to the newest attempt's log of a global rank."""
        return self.path / "logs" / f"rank-{rank:05d}.log"

    def timeline(self, writer: str) -> Path:
        return self.path / "timeline" / f"{writer}.jsonl"


def folder_of(link: Path) -> Path | None:
    """Return the folder to which a link of a run directory leads; None where it is no link.

    `Path.resolve` would look up each part of the path, too. Some links lead to one beside them.
    """
    try:
        target = link.parent / os.readlink(link)
        if target.parent != link.parent:
            return target
    except OSError:
        return None
    with contextlib.suppress(OSError):  # it is no link
        return link.parent / os.readlink(target)
    return target


@dataclass(frozen=True)
class AttemptDir:
    """The paths of one attempt K, below `RUN_DIR/attempt-K`."""

    path: Path

    plan = File("plan.json")  # nodes, endpoint, rendezvous id, by attempt.open for every agent
    rendezvous_key = File("rendezvous.key")  # signs what the torchruns share
    outcome = File("outcome.json")  # how the training ended, by rank 0 as its last act
    stop_requested = File("stop_requested")  # by each agent that gets a stop signal
    hang = File("hang.json")  # created empty by the rank that finds a hang first; its conclusion

    def agent(self, node_rank: int) -> Path:
        """Return the signals that a node's agent received, and how its torchrun ended."""
        return self.path / f"agent-{node_rank:05d}.json"

    def agent_error(self, node_rank: int) -> Path:
        """Return why an agent did not start torchrun: one line, by slurm/agent.sh or the agent."""
        return self.path / f"agent-{node_rank:05d}.error"

    def setup_log(self, node_rank: int) -> Path:
        """Return the output of the setup lines on a node."""
        return self.path / f"setup-{node_rank:05d}.log"

    def torchrun_log(self, node_rank: int) -> Path:
        """Return torchrun's own output on a node; its tracebacks repeat those of the ranks."""
        return self.path / f"torchrun-{node_rank:05d}.log"

    def rank_log(self, rank: int) -> Path:
        return self.path / f"rank-{rank:05d}.log"

    def rank_error(self, rank: int) -> Path:
        """Return why a rank failed; written by the rank as its last act."""
        return self.path / f"rank-{rank:05d}.error.json"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a new path in the same directory; rename it to `path` after the block.

    If the block or the rename fails, the temporary file is removed and `path` stays as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # a full disk needs every byte of it back
            temporary.unlink()
        raise


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` as a whole and durably: a reader or a crash sees the old or the new text."""
    with replacing(path) as temporary:
        write_durable(temporary, text)
    fsync_directory(path.parent)


def write_durable(path: Path, text: str) -> None:
    """Write a new file and its content durably; its name lasts from `fsync_directory` on.

    For a file that no process reads before that, and that others than its owner only replace.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with open(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def fsync_directory(path: Path) -> None:
    """Make the renames and new files in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def parse_json(text: str | bytes, where: object) -> Any:
    """Return the value in a JSON text. `where`: the file, for the error. Raises: RecordError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{where}: not JSON: {error}") from error


def read_json(path: Path) -> Any:
    """Return the value in a JSON file; None without the file. Raises: RecordError, OSError."""
    try:
        return parse_json(shared_files.read_text(path), path)
    except FileNotFoundError:
        return None


def append_jsonl(path: Path, record: object, durable: bool = False) -> None:
    """Append one record as one line in a single write; removes a line that a crash cut off."""
    line = (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
    with open(path, "ab+") as file:
        if (end := _end_of_lines(file)) < file.seek(0, os.SEEK_END):
            file.truncate(end)
        file.write(line)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def _end_of_lines(file: BinaryIO) -> int:
    """Return the offset after the last whole line; usually that is the end of the file."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - 1))
    if file.read(1) in (b"", b"\n"):
        return end
    file.seek(0)
    return file.read().rfind(b"\n") + 1


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Return the records of a JSON-lines file; a last line that a crash cut off does not count.

    Raises: RecordError, OSError.
    """
    try:
        # Not splitlines: it also ends a line at characters that JSON does not escape.
        *lines, _ = shared_files.read_bytes(path).split(b"\n")
    except FileNotFoundError:
        return []
    return [parse_json(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def relink(link: Path, target: str) -> None:
    """Point a symbolic link at `target`, atomically."""
    with replacing(link) as temporary:
        temporary.symlink_to(target)


class Timeline:
    """Wall-clock events of one writer, `timeline/<writer>.jsonl`."""

    def __init__(self, run_dir: RunDir, writer: str, attempt: int | None = None) -> None:
        self._path = run_dir.timeline(writer)
        self._attempt = attempt

    def event(self, name: str, **fields: Any) -> None:
        """Append `{"t": seconds since the epoch, "event": name, ...}`. Raises: OSError."""
        record = {"t": round(time.time(), 3), "event": name, "attempt": self._attempt, **fields}
        append_jsonl(self._path, record)
