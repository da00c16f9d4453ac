"""What a run is made of: its code and packages, its overrides, the later changes of its spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from . import OMIT_NONE


@dataclass(frozen=True)
class Overrides:
    """overrides.json: the `KEY=VALUE` arguments of submit and of all resumes, in order."""

    arguments: tuple[str, ...]


@dataclass(frozen=True)
class SpecChange:
    """A line of changes.jsonl: a change of the spec that a user confirmed at a resume."""

    time: float  # since the epoch
    changes: Mapping[str, tuple[object, ...]]  # by key: the old and the new JSON value
    spec_sha256: str = ""  # of the changed spec.json


@dataclass(frozen=True)
class Revision:
    """revision.json: what a resume changes in the run directory; each path is relative to it.

    moves: old and new names. files: the new texts; None: the file is removed. links: where they
    lead to.
    """

    moves: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str | None] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)

    def __add__(self, other: Revision) -> Revision:
        """Return both changes, this one first."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Revision(*({**mine, **theirs} for mine, theirs in pairs))


@dataclass(frozen=True)
class StateOrigin:
    """The checkpoint of another run with which a run began."""

    run_id: str
    run_dir: str
    checkpoint: str
    step: int
    code: str | None = None  # name of the frozen code of that run at the copy


@dataclass(frozen=True)
class Provenance:
    """provenance.json: the newest code, the interpreter and the packages of a run."""

    code: str  # name of the frozen code
    git_sha: str | None
    git_diff: str | None
    python: str
    interpreter: str  # that submitted; it runs the commands of the batch script
    host: str
    versions: Mapping[str, str | None]  # of packages; None where one is not installed
    repository: str | None = None  # the checkout that the code was frozen from
    origin: StateOrigin | None = field(default=None, metadata=OMIT_NONE)
    frozen: float | None = field(default=None, metadata=OMIT_NONE)  # since the epoch: the code


@dataclass(frozen=True)
class ProvenanceOrigin:
    """The keys of provenance.json that the trainer reads."""

    origin: StateOrigin | None = None
    frozen: float | None = None
