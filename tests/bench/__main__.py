"""Measure the kit; print the table to stdout, and write all times to a JSON file.

python -m tests.bench                    lists the benches and the sets
python -m tests.bench usual              runs a set, as `make bench` does
python -m tests.bench B8 load            runs some by number or name
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench import report, rounds
from tests.bench.catalogue import Bench, chosen, listing
from tests.core.run_files import write_json

REPOSITORY = Path(__file__).resolve().parents[2]
LAST_LINES = 60  # of a bench's output, shown if it fails
END_S = 60  # torchrun gives its ranks 30 s to end
LEAST_S = 20  # less is too short for any bench; as much stays free for the end of one


def measure(bench: Bench, folder: Path, left_s: float) -> dict[str, Any]:
    """A bench's figures, or why there are none; the output of its processes goes to a file."""
    figures_file, log = folder / f"{bench.name}.json", folder / f"{bench.name}.log"
    name = f"{bench.number} {bench.name}{rounds.sized('', ' (dry run)')}"
    result: dict[str, Any] = {"bench": name, "figures": [], "error": None}
    limit_s = min(bench.limit_s, left_s - LEAST_S)
    if lacks := bench.lacks() or (limit_s < LEAST_S and f"only {left_s:.0f} s are left"):
        return {**result, "left_out": f"not run: {lacks}"}
    started, load = time.monotonic(), rounds.load()
    with open(log, "wb") as sink:
        status = _run(_command(bench, folder), limit_s, sink.fileno())
    if figures_file.exists():
        result["figures"] = json.loads(figures_file.read_text(encoding="utf-8"))
    if status != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        print(*lines[-LAST_LINES:], sep="\n", file=sys.stderr)
        if isinstance(status, str) and limit_s < bench.limit_s:
            result["left_out"] = f"not run: the rest {status}"
        else:
            result["error"] = f"failed: {status}"
    seconds = round(time.monotonic() - started, 1)
    return {**result, "load": [load, rounds.load()], "seconds": seconds}


def _command(bench: Bench, folder: Path) -> list[str]:
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={bench.ranks}"]
    worker = ["-m", "tests.bench.worker", bench.name, str(folder)]
    return [sys.executable, *(torchrun if bench.ranks else []), *worker]


def _run(command: Sequence[str], limit_s: float, output: int) -> int | str:
    """The exit status of a command, or that it took too long."""
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        stdout=output,
        stderr=output,
    )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return f"took more than {limit_s:g} s"
    finally:
        if process.poll() is None:
            process.terminate()  # not kill: torchrun must end its ranks, a bench its runs
            process.wait(END_S)


def main(arguments: list[str]) -> int:
    """Run the named benches; returns 1 if one raised an error, and 0 for any figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=listing())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="NAME", help="a set, a number or a name")
    parser.add_argument("--json", type=Path, default=Path("runs/bench.json"), metavar="PATH")
    parser.add_argument("--minutes", type=float, default=math.inf, help="for all of them together")
    parser.add_argument(
        "--dry-run", action="store_true", help="two rounds, tiny sizes of the GPU's rows"
    )
    asked = parser.parse_args(arguments)
    if not asked.names:
        print(listing())
        return 0
    try:
        benches = chosen(asked.names)
    except ValueError as error:
        parser.error(f"{error}\n{listing()}")
    if asked.dry_run:
        os.environ[rounds.DRY_RUN] = "1"
        print("a dry run: two rounds and tiny sizes, which show that the benches run")
    started, machine, results = time.monotonic(), rounds.machine(), []
    print(report.describe(machine), flush=True)
    for bench in benches:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            left_s = 60 * asked.minutes - (time.monotonic() - started)
            results.append(measure(bench, Path(folder), left_s))
        print(report.table(results[-1:]), flush=True)
    seconds = time.monotonic() - started
    print(report.summary(results, seconds))
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    write_json(asked.json, {"machine": machine, "seconds": round(seconds), "benches": results})
    print(f"all times: {asked.json}")
    return int(any(result["error"] for result in results))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what it has started
    sys.exit(main(sys.argv[1:]))
