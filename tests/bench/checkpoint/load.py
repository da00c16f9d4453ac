"""B10: the load of a checkpoint of 0.94 GB."""

import ctypes
import functools
import gc
import time
from pathlib import Path
from statistics import median

import torch

from slurm_job_kit.jobs.contract.checkpoint.reader import Contents
from slurm_job_kit.jobs.contract.spec import Spec, Train
from slurm_job_kit.trainer.checkpoint import outline
from slurm_job_kit.trainer.model import optim
from slurm_job_kit.trainer.plugins.zoo.gpt import GPT
from slurm_job_kit.trainer.plugins.zoo.tokens import BYTE_VOCABULARY
from slurm_job_kit.trainer.training.run import prepare
from tests.bench.place import Place, StepClock
from tests.bench.rounds import Figure, Target, interleaved, quartiles, ratio, timed

ROUNDS = 4
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
        gc.collect()  # else the block reuses memory that is free already
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # sets VmHWM to VmRSS
        self._before = _status_bytes("VmRSS")

    def rise_bytes(self) -> int:
        """The highest resident size since the beginning, less that at the beginning."""
        return _status_bytes("VmHWM") - self._before


def measure(place: Place) -> list[Figure]:
    """Seconds until a new model has the loaded state, one rank.

    The kit builds its data and a model without initial weights, checks the SHA-256 of the file, and
    runs a throw-away pass. The peer does what tutorials write: it builds a model with initial
    weights, then calls torch.load and load_state_dict.
    """
    run = place.train(SPEC, StepClock(0))
    (directory,) = run.checkpoints.glob("step-*")
    state = run.path / "state.pt"  # as tutorials save it
    contents = Contents.open(directory)
    torch.save(outline.whole(outline.read(contents), contents), state)
    attempts, rises = iter(range(2, 1000)), list[float]()

    def kit() -> float:
        context, memory = place.context(SPEC, run, next(attempts)), Memory()
        began = time.perf_counter()
        loop = prepare(context)
        took_s = time.perf_counter() - began
        rises.append(memory.rise_bytes() / state.stat().st_size)
        assert loop.state.global_step == SPEC.train.max_steps
        loop.close()
        return took_s

    def peer() -> float:
        Memory()  # neither of them reuses memory of the other
        return timed(functools.partial(_load, state))

    times = interleaved({"kit": kit, "torch": peer}, ROUNDS)
    seconds = f"{median(times['kit']):.2f} / {median(times['torch']):.2f} s"
    size = f"{state.stat().st_size / 1e9:.2f} GB"
    what = (
        f"{size}: kit, with data, checksum and throw-away pass / model, torch.load, load_state_dict"
    )
    peak = f"{size}: peak memory of the kit's load in sizes of the state, with model and gradients"
    return [
        ratio(f"{what} ({seconds})", times["kit"], times["torch"], Target("<=", 1.6)),
        Figure(peak, median(rises), Target("<=", 2.2), quartiles(rises)),
    ]


def _load(path: Path) -> None:
    module = GPT(BYTE_VOCABULARY, block_size=16, **SPEC.train.model_args)
    optimizer = optim.create(module, SPEC.train)
    saved = torch.load(path, map_location="cpu", weights_only=True)
    module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))
