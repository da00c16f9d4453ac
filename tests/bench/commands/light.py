"""B2: seconds of the commands that only read, against a Python that does nothing."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

from tests.bench.commands.command_line import LIMIT_S, fake_slurm, seconds
from tests.bench.rounds import Figure, Target, interleaved, milliseconds, ratio
from tests.bench.start.local_run import REPOSITORY

COMMANDS = {"status": ["status"], "--help": ["--help"]}
HEAVY = ("torch", "yaml", "numpy", "submitit")
# Runs a command in a new Python, and prints which of the packages it has imported.
WHICH = """
import contextlib, io, sys
from slurm_job_kit.jobs.__main__ import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main(sys.argv[2:])
print(*[name for name in sys.argv[1].split(",") if name in sys.modules])
"""


def measure(folder: Path) -> list[Figure]:
    """Seconds of whole processes; which large packages the commands import."""
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
        *(
            ratio(f"{name} / python -c '' ({bare}), no runs", times[name], times["python"])
            for name in COMMANDS
        ),
        *(_imports(name, words, env) for name, words in COMMANDS.items()),
    ]


def _imports(name: str, words: list[str], env: dict[str, str]) -> Figure:
    modules = subprocess.run(
        [sys.executable, "-c", WHICH, ",".join(HEAVY), *words],
        cwd=REPOSITORY,
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    ).stdout.split()
    what = f"{name}: large packages imported, of {', '.join(HEAVY)}"
    return Figure(what, len(modules), Target("==", 0), detail={"imported": modules})
