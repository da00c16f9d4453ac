"""Measure the kit; print the table to stdout, and write all times to a JSON file.

python -m tests.bench                       lists the benches
python -m tests.bench all                   runs them, as `make bench` does
python -m tests.bench seek loop_overhead    runs some
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from slurm_job_kit.jobs.rundir import write_json
from tests.bench import report, rounds

REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT_S = 300
LAST_LINES = 60  # of the ranks' output, shown if a bench fails
# name: (number in the list of benches, ranks, title)
BENCHES = {
    "loop_overhead": ("B4", 1, "a step of the kit with everything on / of a bare DDP loop"),
    "device_syncs": ("B6", 1, "times the host waits for the device, per step between log lines"),
    "accumulation": ("B7", 2, "gradient accumulation: naive / kit, and reductions per step"),
    "checkpoint_stall": ("B8", 1, "torch.save and fsync / the kit's stall, 200 MB"),
    "durable_saves": ("B9", 1, "a training with a durable save each 15 steps / without"),
    "seek": ("B10", 1, "first batch of a resume at 80 % of an epoch / at 1 %"),
    "samples": ("B11", 2, "samples twice or missing after three stops at any step"),
    "small_images": ("B12", 1, "augmented small images per second: kit / per-sample loader"),
}


def measure(name: str, folder: Path) -> dict[str, Any]:
    """A bench's figures, from ranks that torchrun starts; their output goes to a file."""
    number, ranks, _ = BENCHES[name]
    found, log = folder / f"{name}.json", folder / f"{name}.log"
    started, load = time.monotonic(), rounds.load()
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    worker = ["-m", "tests.bench.worker", name, str(folder)]
    with open(log, "wb") as sink:
        done = subprocess.run(
            [sys.executable, *torchrun, *worker],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
            stdout=sink,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            check=False,
        )
    result = {"bench": f"{number} {name}", "ranks": ranks, "figures": [], "error": None}
    if done.returncode == 0:
        result["figures"] = json.loads(found.read_text(encoding="utf-8"))
    else:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        print(*lines[-LAST_LINES:], sep="\n", file=sys.stderr)
        result["error"] = f"failed with status {done.returncode}"
    seconds = round(time.monotonic() - started, 1)
    return {**result, "load": [load, rounds.load()], "seconds": seconds}


def main(arguments: list[str]) -> int:
    """Run the named benches; returns 1 if one raised an error, and 0 for any figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=_catalogue())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="NAME", choices=["all", *BENCHES])
    parser.add_argument("--json", type=Path, default=Path("runs/bench.json"), metavar="PATH")
    asked = parser.parse_args(arguments)
    if not asked.names:
        print(_catalogue())
        return 0
    names = list(BENCHES) if "all" in asked.names else asked.names
    machine, results = rounds.machine(), []
    print(report.describe(machine), flush=True)
    for name in names:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            results.append(measure(name, Path(folder)))
        print(f"{name}: {results[-1]['seconds']} s, load {results[-1]['load']}", file=sys.stderr)
    print(report.table(results))
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    write_json(asked.json, {"machine": machine, "benches": results})
    print(f"all times: {asked.json}")
    return int(any(result["error"] for result in results))


def _catalogue() -> str:
    lines = [f"{number:4} {name:17} {what}" for name, (number, _, what) in BENCHES.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
