"""The command of torchrun that a comment of slurm/ddp.sbatch shows."""

import re
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "slurm/ddp.sbatch"


def commented_torchrun() -> str:
    """Return a pattern for that command: a word in capitals, or $head_address, is any text."""
    comment = re.search(r"^#   (PYTHON -u .*\n(?:#       .*\n)+)", SCRIPT.read_text(), re.MULTILINE)
    assert comment is not None
    command = re.escape(" ".join(comment[1].replace("\n#", " ").split()))
    return re.sub(r"\b(?!SIG)(?:[A-Z_]{4,}|JOB)\b|\\\$head_address", r"\\S+", command)
