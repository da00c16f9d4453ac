"""B10: the load of a checkpoint of 0.94 GB."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from slurm_job_kit.jobs.spec import Spec, Train
from slurm_job_kit.trainer.checkpoint.state import STATE
from slurm_job_kit.trainer.run import prepare
from tests.bench.place import Place, StepClock
from tests.bench.rounds import Figure, Target, interleaved, quartiles, ratio, timed

ROUNDS = 7
# 78 million parameters with AdamW.
SPEC = Spec(
    train=Train(
        objective="language_model",
        model="gpt",
        model_args={"n_layer": 11, "n_head": 12, "n_embd": 768},
        dataset="python_source",
        dataset_args={"block_size": 16, "max_bytes": 200_000},
        micro_batch_size=1,
        optimizer="adamw",
        max_steps=1,
        eval_every_epochs=None,
    )
)


class Memory:
    """How far the memory of this process rises in a block of code."""

    def __init__(self) -> None:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # else the block reuses memory that is free already
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # sets VmHWM to VmRSS
        self._before = _status_bytes("VmRSS")

    def rise_bytes(self) -> int:
        """The highest resident size since the beginning, less that at the beginning."""
        return _status_bytes("VmHWM") - self._before


def measure(place: Place) -> list[Figure]:
    """Seconds from the data to the loaded state, with the model's construction, one rank.

    The kit checks the SHA-256 of the file, builds the model, wraps it and runs a throw-away pass;
    the peer does torch.load and load_state_dict only, on a model that exists.
    """
    run = place.train(SPEC, StepClock(0))
    (state,) = run.checkpoints.glob(f"step-*/{STATE}")
    attempts, rises = iter(range(2, 1000)), list[float]()

    def kit() -> float:
        context, began, memory = place.context(SPEC, run, next(attempts)), 0.0, Memory()

        def begin(phase: str) -> None:
            nonlocal began
            if phase == "model":
                began = time.perf_counter()

        loop = prepare(context, begin)
        took_s = time.perf_counter() - began
        rises.append(memory.rise_bytes() / state.stat().st_size)
        assert loop.state.global_step == SPEC.train.max_steps
        loop.close()
        return took_s

    loop = prepare(place.context(SPEC, run, next(attempts)))
    load: Callable[[], None] = lambda: _load(state, loop.replica.module, loop.replica.optimizer)  # noqa: E731
    times = interleaved({"kit": kit, "torch": lambda: timed(load)}, ROUNDS)
    loop.close()
    seconds = f"{median(times['kit']):.2f} / {median(times['torch']):.2f} s"
    size = f"{state.stat().st_size / 1e9:.2f} GB"
    what = f"{size}: kit, model and throw-away pass included / torch.load + load_state_dict"
    peak = f"{size}: peak memory of the kit's load in sizes of the state, with model and gradients"
    return [
        ratio(f"{what} ({seconds})", times["kit"], times["torch"], Target("<=", 1.6)),
        Figure(peak, median(rises), Target("<=", 2.2), quartiles(rises)),
    ]


def _load(path: Path, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    saved = torch.load(path, map_location="cpu", weights_only=True)
    module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))
