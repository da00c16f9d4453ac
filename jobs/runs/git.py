"""Runs git for its output."""

import os
import subprocess
from pathlib import Path

from .. import hooks
from ..base import environment
from ..base.environment import Program

# A freeze starts no program beside git: a diff writes the index, after which git runs a hook.
_OFF = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")


def ask_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in a folder; a diff with a patch also needs the options of `freeze.DIFF`.

    Raises: FileNotFoundError where git is not installed.
    """
    argv = ["git", "-C", str(folder), *_OFF, *arguments]
    argv, environ = hooks.launch_command(Program.GIT, argv, environment.for_reading(os.environ))
    return subprocess.run(
        argv,
        capture_output=True,
        check=False,
        encoding="utf-8",
        errors="surrogateescape",
        env=environ,
    )
