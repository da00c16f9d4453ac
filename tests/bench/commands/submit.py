"""B1: seconds until a job is submitted."""

import itertools
import shutil
import sys
from pathlib import Path

from tests.bench.commands.command_line import fake_slurm, seconds
from tests.bench.rounds import Figure, Target, interleaved, milliseconds, ratio
from tests.bench.start.local_run import REPOSITORY

# As in submitit's guide: the function to run stands in the script, which imports what it needs.
SCRIPT = """
import sys
import torch
import submitit

def train():
    return torch.zeros(1)

executor = submitit.SlurmExecutor(sys.argv[1])
executor.update_parameters(nodes=2, time=60)
print(executor.submit(train).job_id)
"""
SPEC = "name: bench\nslurm: {nodes: 2}\n"
FAKE = "fake Slurm clients"
KIT_DIFFERS = "the kit also freezes the code"


def measure(folder: Path) -> list[Figure]:
    """Seconds of each command from its start to its end; only Slurm's clients are fakes."""
    env, numbers = fake_slurm(folder / "bin"), itertools.count()
    script, config = folder / "script.py", folder / "bench.yaml"
    script.write_text(SCRIPT, encoding="utf-8")
    config.write_text(SPEC, encoding="utf-8")
    jobs = [sys.executable, "-m", "jobs", "submit", str(config), "--cluster", "slurm", "--no-check"]

    def kit() -> float:
        return seconds(jobs, {**env, "KIT_RUNS": str(folder / "runs")})

    def submitit() -> float:
        return seconds([sys.executable, script, folder / f"submitit-{next(numbers)}"], env)

    variants = {"kit": kit, "submitit": submitit}
    torchx = _torchx()
    if torchx is not None:
        project = folder / "project"  # torchx copies its working directory
        project.mkdir()
        (project / "train.py").touch()

        def by_torchx() -> float:
            place = f"job_dir={folder / f'torchx-{next(numbers)}'}"
            options = ["--scheduler", "slurm", "-cfg", place, "dist.ddp", "-j", "2x1"]
            return seconds([torchx, "run", *options, "--script", "train.py"], env, project)

        variants["torchx"] = by_torchx
    times = interleaved(variants)
    own = milliseconds(times["kit"])
    what = f"submitit from a script that imports torch / kit submit --no-check ({own}; {FAKE})"
    target = Target(">=", 7)
    figures = [ratio(f"{what}; {KIT_DIFFERS}", times["submitit"], times["kit"], target)]
    what = f"torchx run / kit submit --no-check ({FAKE})"
    if torchx is None:
        why = "needs torchx: `make bench-full` installs it"
        return [*figures, Figure(f"{what}; {why}", None, None)]
    what = f"{what}; {KIT_DIFFERS}"
    return [*figures, ratio(what, times["torchx"], times["kit"], Target(">=", 1.6))]


def _torchx() -> str | None:
    """The command torchx, of the environment that `make bench-full` makes or of PATH."""
    own = REPOSITORY / ".venv/torchx/bin/torchx"
    return str(own) if own.exists() else shutil.which("torchx")
