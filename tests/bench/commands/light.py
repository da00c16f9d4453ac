"""B2: seconds of the commands that only read, against a Python that does nothing."""

import sys
from functools import partial
from pathlib import Path

from tests.bench.commands.command_line import fake_slurm, seconds
from tests.bench.rounds import Figure, interleaved, milliseconds, ratio

COMMANDS = {"status": ["status"], "--help": ["--help"]}


def measure(folder: Path) -> list[Figure]:
    """Seconds of whole processes. tests/core/commands/test_counts.py counts what they import."""
    env = {**fake_slurm(folder / "bin"), "KIT_RUNS": str(folder / "runs")}
    (folder / "runs").mkdir()
    python = [sys.executable, "-c", ""]
    variants = {"python": partial(seconds, python, env)}
    variants |= {
        name: partial(seconds, [sys.executable, "-m", "jobs", *words], env)
        for name, words in COMMANDS.items()
    }
    times = interleaved(variants)
    bare = milliseconds(times["python"])
    return [
        ratio(f"{name} / python -c '' ({bare}), no runs", times[name], times["python"])
        for name in COMMANDS
    ]
