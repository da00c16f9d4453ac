"""B1: seconds until a job is submitted."""

import itertools
import sys
from pathlib import Path

from tests.bench.commands.command_line import fake_slurm, seconds
from tests.bench.rounds import Figure, Target, interleaved, milliseconds, ratio

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

    times = interleaved({"kit": kit, "submitit": submitit})
    own = milliseconds(times["kit"])
    what = f"submitit from a script that imports torch / kit submit --no-check ({own}; {FAKE})"
    target = Target(">=", 7)
    return [ratio(f"{what}; {KIT_DIFFERS}", times["submitit"], times["kit"], target)]
