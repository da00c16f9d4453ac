"""G3: the bits of a training after a SIGKILL, and after a stop with a resume, one rank each."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.plugins.compare.compare import compare, summary
from tests.bench.rounds import Figure, Target, sized
from tests.bench.start.local_run import LIMIT_S, REPOSITORY, LocalRun

HARMS = ("none", "SIGKILL", "stop")
CORES_OF_VARIANT = 2  # for its three runs, which import torch and then wait for the GPU
VARIANTS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"train": {"precision": "bf16"}},
    "fp16": {"train": {"precision": "fp16"}},
    "torch.compile": {"train": {"compile": True}},
    "launch.fork": {"launch": {"fork": True}},
    "fsdp": {"train": {"strategy": "fsdp"}},
}
TRAIN = yaml.safe_load((REPOSITORY / "configs/gpt.yaml").read_text(encoding="utf-8"))["train"]
TRAIN |= {"deterministic": True, "max_steps": sized(1000, 300)}
TRAIN["model_args"] = sized(TRAIN["model_args"], {"n_layer": 1, "n_embd": 32}) | {"dropout": 0.1}
TRAIN["dataset_args"] = {"block_size": sized(128, 16), "max_bytes": 300_000}


def measure(folder: Path) -> Iterator[Figure]:
    """Differences of each harmed run from the undisturbed one, which the command compare finds."""
    at_once, failures = max(2, (os.cpu_count() or 1) // CORES_OF_VARIANT), list[str]()
    for start in range(0, len(VARIANTS), at_once):
        names = list(VARIANTS)[start : start + at_once]
        with ExitStack() as stack:
            pairs = product(names, HARMS)
            runs = {pair: stack.enter_context(_start(folder, *pair)) for pair in pairs}
            left = [(run, harm) for (_, harm), run in runs.items() if harm != "none"]
            while left := [each for each in left if not _harmed(*each)]:
                time.sleep(0.01)
            for run in (runs[name, "stop"] for name in names):
                if run.process.wait(LIMIT_S) == 130:
                    run.start("resume", str(run.dir.path))
            for name in names:
                try:
                    yield from _figures(name, [runs[name, harm] for harm in HARMS])
                except (RuntimeError, AssertionError) as error:
                    failures.append(f"{name}: {error}")
    assert not failures, "\n".join(failures)


def _start(folder: Path, name: str, harm: str) -> LocalRun:
    of_variant = VARIANTS[name]
    spec = {
        "slurm": {"nodes": 1},
        "launch": of_variant.get("launch", {}),
        "train": TRAIN | of_variant.get("train", {}),
        "checkpoint": {"every_steps": sized(100, 20)},
    }
    return LocalRun(folder / f"{name}-{harm}", spec)


def _harmed(run: LocalRun, harm: str) -> bool:
    """Harm a run that has saved; False for one that has not yet."""
    if run.process.poll() is None:
        events = run.events("rank-00000", 1)
        if "save" not in events:
            return False
        if harm == "SIGKILL":
            os.kill(events["start"]["pid"], signal.SIGKILL)
        else:
            run.process.send_signal(signal.SIGTERM)
    return True


def _figures(name: str, runs: Sequence[LocalRun]) -> Iterator[Figure]:
    for each in runs:
        each.wait()
    reference, *harmed = (run.dir for run in runs)
    if name == "fp32":
        yield _preflight(reference)
    for harm, run in zip(HARMS[1:], harmed, strict=True):
        assert read_json(run.result)["attempts"] == 2, f"{run.path} was not harmed"
        differences = compare(run, reference)
        found = "; ".join(differences) or summary(run, reference)
        what = f"{name}, {harm}: differences from the undisturbed run ({found})"
        yield Figure(what, len(differences), Target("==", 0))


def _preflight(run: RunDir) -> Figure:
    """Whether the preflight of a rank read the GPU's driver by NVML."""
    lines = run.rank_log(0).read_text(encoding="utf-8").splitlines()
    printed = [line for line in lines if "preflight" in line]
    if printed or not any(" cuda:" in line for line in lines):
        return Figure(f"preflight, NVML not run: {' '.join(printed) or 'needs a GPU'}", None, None)
    return Figure("preflight, NVML: it saw the GPU's counters, and printed nothing", 1, None)
