"""Runs git for its output, and no program that the configuration of a repository names."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from .. import environment, hooks
from ..environment import Door
from ..errors import UserError

# A diff writes the index, after which git runs a hook: since git 2.54 also one of a configuration.
_OFF = (
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"),
    *("-c", "hook.post-index-change.enabled=false"),
)
# A partial clone would fetch what is missing, with programs that its configuration names.
_NO_FETCH = {"GIT_ALLOW_PROTOCOL": ""}


def ask_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in a folder; a diff with a patch also needs the options of `freeze.DIFF`.

    Filters that the user has for all repositories, such as git-lfs, work.

    Raises: FileNotFoundError where git is not installed; UserError for a filter's odd name.
    """
    where = ("-C", str(folder))
    return _run(*where, *_OFF, *_own_filters(where), *arguments)


def _own_filters(where: tuple[str, ...]) -> Iterator[str]:
    """Yield the options that undo what a repository's configuration changes in filters."""
    found = _filters(*where)
    own = _filters("--git-dir=/dev/null") if found else {}
    for key, _ in found.items() - own.items():
        if "=" in key:  # which -c cannot set
            raise UserError(
                f"{where[1]}: git's configuration has a filter with = in its name: {key}\n"
                "  hint: remove it from .git/config"
            )
        yield from ("-c", f"{key}={own.get(key, 'false' if key.endswith('.required') else '')}")


def _filters(*where: str) -> dict[str, str]:
    named = r"^(filter|lfs\.extension)\."  # git-lfs runs its extensions in its filter
    listed = _run(*where, "config", "-z", "--get-regexp", named).stdout.split("\0")
    return {key: value for key, _, value in (each.partition("\n") for each in listed if each)}


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environ = environment.for_reading(os.environ)
    argv, environ = hooks.start(Door.GIT, ["git", *arguments], environ)
    return subprocess.run(
        argv,
        capture_output=True,
        check=False,
        encoding="utf-8",
        errors="surrogateescape",
        env={**environ, **_NO_FETCH},
    )
