"""The command export: write the weights of a checkpoint into one file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from jobs.errors import UserError
from jobs.rundir import RunDir
from jobs.runs import checkpoints


def export(run_dir: RunDir, checkpoint: str | None, out: Path | None) -> int:
    """Become the trainer's export, which imports torch, of this checkout."""
    if not checkpoints.committed(run_dir):
        hint = "the first is committed after an epoch, or at a stop; make status shows the progress"
        raise UserError(f"{run_dir.run_id} has no checkpoint yet\n  hint: {hint}")
    words = [sys.executable, "-m", "trainer.checkpoint.export", str(run_dir.path)]
    words += ["--checkpoint", checkpoint] if checkpoint else []
    words += ["--out", str(out)] if out else []
    os.execv(words[0], words)
