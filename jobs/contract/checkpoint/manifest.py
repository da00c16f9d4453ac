"""The files of a checkpoint and their digests, and the content of its manifest.

`step-XXXXXXXX/` has some files and `manifest.json` with the size and SHA-256 of each: `state.json`
of rank 0, and `rank-RRRRR.safetensors` with the tensors of a rank.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ...base.errors import UserError
from .. import records
from ..records.training import Best
from .names import MANIFEST

FORMAT_VERSION = 6
# What is raised where JSON that the kit did not write is taken apart.
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)


class DamageError(Exception):
    """A committed checkpoint has other bytes than those that were written."""


@dataclass(frozen=True)
class FileDigest:
    """The size of a file in bytes, and its SHA-256 in hexadecimal digits."""

    size: int
    sha256: str

    def check(self, name: str, size: int, sha256: str | None = None) -> None:
        """Raise DamageError where the file has another size, or another digest if it is given."""
        if size != self.size:
            raise DamageError(f"{name} has {size} bytes, not {self.size}")
        if sha256 not in (None, self.sha256):
            raise DamageError(f"{name} does not agree with its SHA-256")


NamedFile = tuple[str, FileDigest]  # a file of a checkpoint, by its name in the directory


@dataclass(frozen=True)
class Manifest:
    """manifest.json: the files of a checkpoint, and values for readers that load no tensors.

    metrics_bytes: the size of metrics.jsonl at the save. A key with a default may be missing.
    """

    format_version: int = field(default=FORMAT_VERSION, kw_only=True)
    global_step: int
    run_id: str = ""
    attempt: int = 0
    spec_sha256: str = ""
    world_size: int = 0
    global_batch_size: int = 0
    metrics_bytes: int = 0
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    best: Best = Best()
    files: Mapping[str, FileDigest] = field(kw_only=True)

    def to_bytes(self) -> bytes:
        return manifest_text(cast(dict[str, Any], records.encode(self)))


def manifest_text(manifest: dict[str, Any]) -> bytes:
    """Return the only valid bytes of a manifest with these values; its own SHA-256 is in them."""
    rest = {name: value for name, value in manifest.items() if name != "sha256"}
    sha256 = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    text = json.dumps({**rest, "sha256": sha256}, indent=2, ensure_ascii=False)
    return (text + "\n").encode("utf-8", "backslashreplace")


def parse(text: bytes, directory: Path) -> Manifest:
    """Return the manifest with these bytes, of the checkpoint in `directory`.

    Raises: ValueError or RecursionError if they are not what the kit wrote; UserError for another
    format version.
    """
    values = json.loads(text)
    if not isinstance(values, dict) or text != manifest_text(values):
        raise ValueError("it does not agree with its own SHA-256")
    if (version := values.get("format_version")) != FORMAT_VERSION:
        raise UserError(
            f"checkpoint {directory} has format version {version}, this kit reads "
            f"{FORMAT_VERSION}: continue with the code that the run began with"
        )
    manifest = records.decode(Manifest, values, MANIFEST)
    if any(os.path.basename(name) != name for name in manifest.files):
        raise ValueError("it does not list files of its directory")
    return manifest
