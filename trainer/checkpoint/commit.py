"""Checkpoint directories that exist completely or not at all. Imports no torch.

`step-XXXXXXXX/` holds some files and `manifest.json` with the size and SHA-256 of each. It is
written under a temporary name and renamed when all of it is on the disk; whatever has another
name was never committed. `trainer.checkpoint.reader` reads it back.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from jobs.rundir import checkpoint_name, checkpoint_names, checkpoint_step, fsync_directory

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
LATEST = "latest"
BEST = "best"
TEMPORARY_PREFIX = ".tmp-"


class Sink(Protocol):
    """Where a writer puts its bytes, in order."""

    def write(self, data: bytes) -> int: ...


@dataclass(frozen=True)
class Draft:
    """What is to be committed: each file by the callable that writes it.

    fields: more of the manifest. permit: asked at the last moment before the name appears, and
    raises to forbid it.
    """

    step: int
    files: dict[str, Callable[[Sink], object]]
    fields: dict[str, Any]
    permit: Callable[[], None]


@dataclass(frozen=True)
class Retention:
    """Which committed checkpoints stay: the newest, multiples of some steps, and the best."""

    keep_last: int
    keep_every_steps: int | None = None
    best_step: int | None = None

    def keeps(self, step: int) -> bool:
        """Whether a checkpoint stays however old it gets."""
        is_multiple = self.keep_every_steps is not None and step % self.keep_every_steps == 0
        return is_multiple or step == self.best_step


def commit(root: Path, draft: Draft) -> str:
    """The name of a new, durable checkpoint."""
    name = checkpoint_name(draft.step)
    with _temporary(root, name) as temporary:
        temporary.mkdir()
        files = {file: _write(temporary / file, write) for file, write in draft.files.items()}
        head = {"format_version": FORMAT_VERSION, "global_step": draft.step}
        text = manifest_text({**head, **draft.fields, "files": files})
        _write(temporary / MANIFEST, lambda sink: sink.write(text))
        fsync_directory(temporary)
        draft.permit()
        # One of this step that was not loaded may be in the way; a rename replaces no directory.
        _remove(root / name)
        os.rename(temporary, root / name)
    fsync_directory(root)
    return name


def manifest_text(manifest: dict[str, Any]) -> bytes:
    """The bytes of a manifest, with its own SHA-256 in it; there are no others for its values."""
    rest = {name: value for name, value in manifest.items() if name != "sha256"}
    sha256 = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    text = json.dumps({**rest, "sha256": sha256}, indent=2, ensure_ascii=False)
    return (text + "\n").encode("utf-8", "backslashreplace")


def point(root: Path, hint: str, name: str) -> None:
    """Have a hint file (`latest` or `best`) name a checkpoint. Nothing relies on it."""
    with _temporary(root, hint) as temporary:
        _write(temporary, lambda sink: sink.write(f"{name}\n".encode()))
        os.replace(temporary, root / hint)
    fsync_directory(root)


def retain(root: Path, newest_step: int, retention: Retention) -> None:
    """Remove the checkpoints before `newest_step`, which is verified, that need not stay."""
    steps = [
        step
        for name in checkpoint_names(root)
        if (step := checkpoint_step(name) or 0) <= newest_step
    ]
    for step in steps[retention.keep_last :]:
        if step != newest_step and not retention.keeps(step):
            _remove(root / checkpoint_name(step))


def remove_leftovers(root: Path) -> None:
    """Remove what killed attempts began and never committed."""
    for name in os.listdir(root):
        if name.startswith(TEMPORARY_PREFIX):
            _discard(root / name)


@contextlib.contextmanager
def _temporary(root: Path, name: str) -> Iterator[Path]:
    """A path that means nothing; what is there goes if anything goes wrong."""
    path = root / f"{TEMPORARY_PREFIX}{name}-{secrets.token_hex(4)}"
    try:
        yield path
    except BaseException:
        _discard(path)
        raise


def _discard(path: Path) -> None:
    """Remove a file or directory as far as that is possible."""
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.unlink(path)


def _remove(directory: Path) -> None:
    """Take the committed name away first, so that half a directory never carries it."""
    aside = directory.with_name(f"{TEMPORARY_PREFIX}old-{directory.name}-{secrets.token_hex(4)}")
    with contextlib.suppress(FileNotFoundError):
        os.rename(directory, aside)
        _discard(aside)


class _HashingSink:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.size = 0
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            written = self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.sha256.update(data)
        self.size += written
        return written

    def flush(self) -> None:
        self._file.flush()


def _write(path: Path, write: Callable[[Sink], object]) -> dict[str, Any]:
    """Write and fsync one file; its size and SHA-256 as of what was meant to be written."""
    with open(path, "xb") as file:
        sink = _HashingSink(file)
        try:
            write(sink)
        except Exception:
            # torch.save turns what a sink raises into a RuntimeError of its own.
            if sink.error is not None:
                raise sink.error from None
            raise
        file.flush()
        os.fsync(file.fileno())
    return {"size": sink.size, "sha256": sink.sha256.hexdigest()}
