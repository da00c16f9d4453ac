"""What the process of the check writes for submit. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FirstError:
    """The first error that the check met at a key of the spec; without `what` it met none.

    key: the way to it, such as ("train", "model").
    frames: the last frames of the user's own files, where their code raised it.
    is_error: every rank would fail; otherwise another host may have what this one lacks.
    """

    key: tuple[str, ...] = ()
    what: str = ""
    hint: str = ""
    frames: tuple[str, ...] = ()
    is_error: bool = True
