"""Simulate 10,000 nodes for 30 days, and measure small runs: `make bench-scale`.

python -m tests.scale simulate          three mixes of jobs, at three published failure rates
python -m tests.scale files             the files of an attempt with up to 80,000 ranks
python -m tests.scale check             the simulator beside small runs with faults, 8 to 21 min
python -m tests.scale ranks             2 to 64 ranks on the real Slurm of the tests (root)
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from slurm_job_kit.jobs.rundir import write_json
from slurm_job_kit.jobs.spec import Slurm, Spec
from tests.bench import rounds

from . import check, files, ranks
from .costs import DAY_S, RSC_1, RSC_2, Rates
from .world import World, totals

NODES, DAYS = 10_000, 30
# What is left over takes the place of nodes that are lost or bad.
MIXES = {
    "1 x 9,900": ((9900,), Spec()),
    "1 x 9,900, max_restarts 2000": ((9900,), Spec(slurm=Slurm(max_restarts=2000))),
    "10 x 990": ((990,) * 10, Spec()),
    "155 x 64": ((64,) * 155, Spec()),
}
RATES = {"RSC-2": RSC_2, "Llama 3": Rates().per_node_day, "RSC-1": RSC_1}


def simulate() -> list[dict[str, Any]]:
    """A line for each mix of jobs and each failure rate."""
    lines: list[dict[str, Any]] = []
    for mix, (sizes, spec) in MIXES.items():
        for name, per_node_day in RATES.items():
            began = time.process_time()
            world = World(NODES, sizes, rates=Rates(per_node_day), spec=spec)
            world.run(DAYS * DAY_S)
            cpu_s = round(time.process_time() - began, 1)
            total = totals(world, DAYS * DAY_S)
            holds = [reason[:80] for reason in total.holds]
            line = asdict(replace(total, holds=())) | {"holds": holds}
            lines.append({"mix": mix, "rate": name, "cpu_s": cpu_s, **line})
            print(_row(lines[-1]), flush=True)
    return lines


def _row(line: dict[str, Any]) -> str:
    return (
        f"{line['mix']:28} {line['rate']:8} goodput {line['goodput']:.4f} "
        f"queued {line['queued']:.4f} attempts {line['attempts']} starts {line['starts']} "
        f"holds {len(line['holds'])} calls/s {line['calls_per_s']:.4f} ({line['cpu_s']} CPU s)"
    )


def _printed(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    print(*lines, sep="\n", flush=True)
    return lines


def _in_a_folder(measure: Callable[[Path], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="scale-", dir="/tmp") as folder:
        return _printed(measure(Path(folder) / "c"))


PARTS = {
    "simulate": simulate,
    "files": lambda: _printed(files.measure()),
    "check": lambda: _in_a_folder(check.measure),
    "ranks": lambda: _in_a_folder(ranks.measure),
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scale", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    parser.add_argument("--json", type=Path, default=Path("runs/scale.json"), metavar="PATH")
    asked = parser.parse_args(arguments)
    machine = rounds.machine()
    results = {name: PARTS[name]() for name in asked.parts or PARTS}
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    write_json(asked.json, {"machine": machine, **results})
    print(f"all figures: {asked.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
