"""Checkpoint directories that exist completely or not at all. Imports no torch.

`step-XXXXXXXX/` holds some files and `manifest.json` with the size and SHA-256 of each. It is
written under a temporary name and renamed when all of it is on the disk; whatever has another
name was never committed. Own checksums, because `torch.load` takes flipped bits without complaint.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from jobs.rundir import fsync_directory, write_atomic

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
LATEST = "latest"
TEMPORARY_PREFIX = ".tmp-"
DAMAGED_PREFIX = ".damaged-"
_NAME = re.compile(r"step-(\d{8})")


class Damaged(Exception):
    """A committed checkpoint whose bytes are not those that were written."""


class Sink(Protocol):
    """Where a writer puts its bytes, in order."""

    def write(self, data: bytes) -> int: ...


def name_of(step: int) -> str:
    """The name of the checkpoint at a step."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step of a committed checkpoint's name; None for any other name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def committed(root: Path) -> list[str]:
    """The names of the committed checkpoints, newest first."""
    return sorted((name for name in os.listdir(root) if step_of(name) is not None), reverse=True)


def commit(
    root: Path,
    step: int,
    writers: dict[str, Callable[[Sink], None]],
    fields: dict[str, Any],
    permit: Callable[[], None],
) -> str:
    """The name of a new, durable checkpoint with one file per writer and `fields` in its manifest.

    `permit` is asked at the last moment before the name appears, and raises to forbid it.
    """
    name = name_of(step)
    temporary = root / f"{TEMPORARY_PREFIX}{name}-{secrets.token_hex(4)}"
    temporary.mkdir()
    try:
        files = {file: _write(temporary / file, write) for file, write in writers.items()}
        manifest = {"format_version": FORMAT_VERSION, "global_step": step, **fields, "files": files}
        manifest["sha256"] = _manifest_sha256(manifest)
        _write(temporary / MANIFEST, lambda sink: _write_json(sink, manifest))
        fsync_directory(temporary)
        permit()
        # A damaged checkpoint of this step may be in the way; no name is replaced by a rename.
        _remove(root / name)
        os.rename(temporary, root / name)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    fsync_directory(root)
    write_atomic(root / LATEST, name + "\n")
    return name


def read(directory: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """(manifest, bytes of each file) of a committed checkpoint; raises `Damaged`."""
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
        if manifest["sha256"] != _manifest_sha256(manifest):
            raise Damaged(f"{MANIFEST} does not agree with its own SHA-256")
        if manifest["format_version"] != FORMAT_VERSION:
            raise Damaged(f"format version {manifest['format_version']}, not {FORMAT_VERSION}")
        contents = {}
        for file, expected in manifest["files"].items():
            contents[file] = (directory / file).read_bytes()
            if len(contents[file]) != expected["size"]:
                raise Damaged(f"{file} has {len(contents[file])} bytes, not {expected['size']}")
            if hashlib.sha256(contents[file]).hexdigest() != expected["sha256"]:
                raise Damaged(f"{file} does not agree with its SHA-256")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error
    return manifest, contents


def read_newest(
    root: Path, report: Callable[[str], None]
) -> tuple[dict[str, Any], dict[str, bytes]] | None:
    """`read` of the newest checkpoint that is whole; damaged ones are reported and put aside."""
    for name in committed(root):
        try:
            return read(root / name)
        except Damaged as error:
            report(f"checkpoint {root / name} is damaged and skipped: {error}")
            # Aside, so that it does not count among the ones to keep.
            with contextlib.suppress(OSError):
                shutil.rmtree(root / (DAMAGED_PREFIX + name), ignore_errors=True)
                os.rename(root / name, root / (DAMAGED_PREFIX + name))
    return None


def remove_leftovers(root: Path) -> None:
    """Remove what a killed attempt began and never committed."""
    for name in os.listdir(root):
        if name.startswith(TEMPORARY_PREFIX):
            shutil.rmtree(root / name, ignore_errors=True)


def retain(root: Path, newest_step: int, keep_last: int) -> None:
    """Remove all but the newest `keep_last` checkpoints up to `newest_step`."""
    past = [name for name in committed(root) if (step_of(name) or 0) <= newest_step]
    for name in past[keep_last:]:
        _remove(root / name)


def _remove(directory: Path) -> None:
    """Take the committed name away first, so that half a directory never carries it."""
    aside = directory.with_name(f"{TEMPORARY_PREFIX}old-{directory.name}-{secrets.token_hex(4)}")
    with contextlib.suppress(FileNotFoundError):
        os.rename(directory, aside)
        shutil.rmtree(aside, ignore_errors=True)


class _HashingSink:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        self.size += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def _write(path: Path, write: Callable[[Sink], None]) -> dict[str, Any]:
    """Write and fsync one file; its size and SHA-256 as of what was meant to be written."""
    with open(path, "wb") as file:
        sink = _HashingSink(file)
        write(sink)
        file.flush()
        os.fsync(file.fileno())
    return {"size": sink.size, "sha256": sink.sha256.hexdigest()}


def _write_json(sink: Sink, value: dict[str, Any]) -> None:
    sink.write((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def _manifest_sha256(manifest: dict[str, Any]) -> str:
    rest = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
