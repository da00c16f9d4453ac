"""Measure what grows with nodes and ranks: `make bench-scale`.

python -m tests.scale files             the files of an attempt with up to 80,000 ranks
python -m tests.scale ranks             2 to 64 ranks on the real Slurm of the tests (root)
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench import rounds
from tests.core.run_files import write_json

from . import files, ranks


def _ranks() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="scale-", dir="/tmp") as folder:
        return ranks.measure(Path(folder) / "c")


PARTS = {"files": files.measure, "ranks": _ranks}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scale", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    parser.add_argument("--json", type=Path, default=Path("runs/scale.json"), metavar="PATH")
    asked = parser.parse_args(arguments)
    results: dict[str, Any] = {"machine": rounds.machine()}
    for name in asked.parts or PARTS:
        results[name] = PARTS[name]()
        print(*results[name], sep="\n", flush=True)
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    write_json(asked.json, results)
    print(f"all figures: {asked.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
