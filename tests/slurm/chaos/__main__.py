"""The campaign: runs with random faults, which must end bitwise equal to a run without faults.

    python -m tests.slurm.chaos N SEED [--draw K] [--out FILE]

Each draw is one JSON line: the faults, and how the run ended. The line of a draw that failed has
the command that repeats it. Its run directory and the cluster's state are kept beside the lines.
"""

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..cluster import Cluster, why_not
from ..faults.scenario import ReferenceRuns
from ..host import IS_SITE
from ..kit import Kit, Run
from ..user_cluster import cluster_at, root_of_this_process
from .draws import Draw, draws
from .harms import HARMS
from .judge import judged, rows_of
from .sites import PATIENCE, SITES
from .victim import Victim, begin

# The run is slow once a fault has come: otherwise it may end before the fault has an effect.
SECONDS_PER_STEP = 0.25
SECONDS_PER_STEP_UNDER_A_BLOW = 4.0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.chaos", description=__doc__)
    parser.add_argument("number", metavar="N", type=int)
    parser.add_argument("seed", metavar="SEED", type=int)
    parser.add_argument(
        "--draw", type=int, action="append", help="this one only, as the whole campaign has it"
    )
    parser.add_argument("--out", type=Path, default=Path(".cluster/chaos"))
    args = parser.parse_args(argv)
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 1
    campaign = draws(args.number, args.seed)
    chosen = [draw for draw in campaign if not args.draw or draw.number in args.draw]
    args.out.mkdir(parents=True, exist_ok=True)
    if IS_SITE:
        os.umask(0)  # users of the cluster write into the folders that harms make
    again = f"make chaos N={args.number} SEED={args.seed} DRAW={{}}{' SITE=1' * IS_SITE}"
    with (
        cluster_at(root_of_this_process("chaos")) as cluster,
        open(args.out / "draws.jsonl", "a") as lines,
    ):
        reference = ReferenceRuns(Kit(cluster, cluster.tmp_path(args.out.resolve() / "reference")))
        strategies = dict.fromkeys(draw.strategy for draw in chosen)
        expected = {each: reference(f"train.strategy={each}") for each in strategies}
        records = []
        for draw in chosen:
            reference_run = expected[draw.strategy]
            record = {"seed": args.seed} | play(cluster, draw, reference_run, args.out.resolve())
            records.append(record)
            lines.write(json.dumps(record) + "\n")
            lines.flush()
            print(in_words(record, again.format(draw.number)), flush=True)
    print(summary(records))
    return int(any(record["verdict"] != "ok" for record in records))


def play(cluster: Cluster, draw: Draw, expected: Run, out: Path) -> dict[str, Any]:
    """Run one draw on a cluster in its first state; returns its record."""
    began = time.monotonic()
    kit = Kit(cluster, cluster.tmp_path(out / f"draw-{draw.number:03}"))
    record = asdict(draw) | {"rows": rows_of(draw)}
    verdict, problem, victim = "failed", "", None
    try:
        conf = f"{PATIENCE}\n{SITES[draw.site].extra_conf}"
        cluster.restart(draw.proctrack, conf, SITES[draw.site].preemption)
        victim = begin(kit, SITES[draw.site], draw.strategy, random.Random(str(draw)))
        harm(victim, draw)
        verdict, problem = judged(victim, draw, expected)
    except Exception as error:  # any error of one draw: the other draws still run
        problem = f"{type(error).__name__}: {error}"
    if victim is not None:
        attempts = victim.run.attempts()
        record |= {"run_dir": str(victim.run.dir.path), "attempts": attempts}
        record |= {"steps_redone": victim.run.result().get("steps_redone")}
    if problem:
        (out / f"draw-{draw.number:03}.txt").write_text(f"{problem}\n{cluster.state()}\n")
    record |= {"verdict": verdict, "problem": problem.partition("\n")[0]}
    return record | {"seconds": round(time.monotonic() - began, 1)}


def harm(victim: Victim, draw: Draw) -> None:
    """Do the harms of a draw, each after its step."""
    for blow in draw.blows:
        victim.pace(SECONDS_PER_STEP)
        if blow.step:
            victim.run.wait_for_step(blow.step)
        victim.pace(SECONDS_PER_STEP_UNDER_A_BLOW)
        victim.wait_for_attempt()
        time.sleep(blow.delay_s)  # at a random moment within a step, a save or a stop
        HARMS[blow.harm].strike(victim)


def in_words(record: dict[str, Any], again: str) -> str:
    blows = ", ".join(f"{blow['harm']}@{blow['step']}" for blow in record["blows"])
    where = f"{record['proctrack']:9} {record['site']:10} {record['strategy']:5}"
    line = f"{record['number']:3} {where} {record['seconds']:6.1f} s  {blows}"
    if record["verdict"] == "ok":
        return f"{line}: ok, {record['steps_redone']} redone"
    return f"{line}: {record['verdict'].upper()}: {record['problem']}\n    see it again: {again}"


def summary(records: Sequence[dict[str, Any]]) -> str:
    verdicts = Counter(record["verdict"] for record in records)
    words = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    rows = sorted({row for record in records for row in record["rows"]})
    return f"{verdicts.total()} draws: {words}; rows {', '.join(map(str, rows))}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
