"""Pipelines in a user's script after which a failed training looks complete: said at submit.

The exit code of `python train.py | tee log` is that of tee. If python printed no error, nothing
else shows how it ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ..spec import Launch

# A program that trains with another one behind it, or tee behind anything. No `||`.
_HIDING = re.compile(
    r"^(?!\s*#).*?(?:\b(?:python[\d.]*|torchrun|accelerate|deepspeed)\b[^|;\n]*(?<!\|)\|(?!\|)"
    r"|(?<!\|)\|&?\s*tee\b)",
    re.M,
)
_GUARD = re.compile(r"\bpipefail\b|\bPIPESTATUS\b|\bpipestatus\b")
_CONTINUED = re.compile(r"\\\n")
_SHELL_SCRIPT = re.compile(r"[\w./-]+\.(?:sh|bash)\b")


def hiding(launch: Launch, script: Path, code: Path) -> list[str]:
    """Return a line for the user about each file in which a pipeline hides how a training ended.

    script: the frozen file of launch.script; code: the frozen repository, or the script's folder.
    Read are the script and the shell scripts that it or launch.args name.
    """
    if "pipefail" in launch.env.get("SHELLOPTS", ""):
        return []
    lines = []
    for path in _files(launch, script, code):
        text = _text(path)
        if (pipeline := _HIDING.search(_join_lines(text))) is None or _GUARD.search(text):
            continue
        number = text.count("\n", 0, pipeline.start()) + 1
        lines.append(
            f"{path.relative_to(code)}:{number}: this pipeline ends with the exit code of its last "
            "command, so a training that fails in it may count as complete: run it by bash after "
            "`set -o pipefail` (launch.env.SHELLOPTS: pipefail does it for each bash)"
        )
    return lines


def _files(launch: Launch, script: Path, code: Path) -> Iterator[Path]:
    if launch.script is None:
        return
    yield script
    names = _SHELL_SCRIPT.findall("\n".join([_text(script), *launch.args]))
    for name in dict.fromkeys(names):
        places = (folder / name.lstrip("/") for folder in (script.parent, code))
        if (file := next((each for each in places if each.is_file()), None)) is not None:
            yield file


def _join_lines(text: str) -> str:
    """Return the text with continued lines as one, of the same length."""
    return _CONTINUED.sub("  ", text)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
