"""What the kit will choose where a key of the spec is `auto` or unset, as far as submit knows it.

What only a run learns is left out: the time of a step, the size of a model, the site's Slurm.
"""

from __future__ import annotations

from collections.abc import Callable

from ...batch_sizes import BatchSizes
from ...config.keys import Key
from ...console import quantity
from ...runs import lookup
from ...spec import METRIC_MODES, Spec

_NO_GPUS = "no GPUs are requested; a run without Slurm has one per GPU of the machine"


def chosen_value(spec: Spec, key: Key) -> str | None:
    """Return the value that stands for `auto` or an unset key, and why; None if it is unknown."""
    section = getattr(spec, key.path[0])
    value = getattr(section, key.path[1]) if len(key.path) > 1 else section
    if value is not None and value != "auto":
        return None
    choose = CHOOSERS.get(key.dotted)
    return choose(spec) if choose else None


def _ranks(spec: Spec) -> str:
    ranks = spec.nproc_per_node
    if spec.launch.nproc_per_node != "auto":
        return f"{ranks}: launch.nproc_per_node is {ranks}"
    is_known = bool(spec.slurm.num_gpus)
    return f"{ranks}: {spec.slurm.gpus_are}" if is_known else f"{ranks}: {_NO_GPUS}"


def _fork(spec: Spec) -> str:
    if not spec.launch.is_trainer:
        return "false: the ranks run your own code"
    if spec.slurm.num_gpus:
        return f"false: {spec.slurm.gpus_are}"
    return "true on a node without GPUs, else false"


def _python(spec: Spec) -> str:
    why = "inside of a prefix or container" if spec.runs_inside else "the one that submits"
    return f"{spec.interpreter}: {why}"


def _module(spec: Spec) -> str:
    return "none: launch.script is set" if spec.launch.script else "slurm_job_kit.trainer"


def _deterministic(spec: Spec) -> str:
    if spec.slurm.num_gpus:
        return f"false: {spec.slurm.gpus_are}"
    return "true on the CPU; false where a rank finds a GPU"


def _global_batch(spec: Spec) -> str | None:
    """Return samples per step. The trainer's ranks alone have batches, and a node may show GPUs."""
    is_known = spec.launch.nproc_per_node != "auto" or spec.slurm.num_gpus
    if not spec.launch.is_trainer:
        return None
    sizes = BatchSizes.for_ranks(spec.train, spec.num_ranks)
    ranks = quantity(sizes.world_size, "rank")
    factors = f"{sizes.micro_batch_sizes} x {sizes.grad_accum_steps} x {ranks}"
    return f"{sizes.global_batch_size}: {factors}" + ("" if is_known else ", without GPUs")


def _shard_size(spec: Spec) -> str | None:
    return _ranks(spec) if spec.train.strategy == "hsdp" else None


def _interval(spec: Spec) -> str | None:
    checkpoint = spec.checkpoint
    every = ("every_epochs", "every_steps", "every_minutes")
    named = [f"checkpoint.{name}" for name in every if getattr(checkpoint, name) is not None]
    is_auto = checkpoint.interval is not None
    return f"none by the clock: {' and '.join(named)} set" if is_auto and named else None


def _best(spec: Spec) -> str | None:
    if spec.checkpoint.best is None or spec.train.objective not in BEST_OF:
        return None
    return f"{BEST_OF[spec.train.objective]}, if train.dataset has held-out samples"


# The metric of each built-in objective. Source: trainer.model.build.best_metric.
BEST_OF = {
    "classification": "eval_accuracy",
    "regression": "eval_loss",
    "language_model": "eval_loss",
}


def _best_mode(spec: Spec) -> str | None:
    best = spec.checkpoint.best
    name = BEST_OF.get(spec.train.objective) if best == "auto" else best
    return METRIC_MODES.get(name) if name else None


CHOOSERS: dict[str, Callable[[Spec], str | None]] = {
    "runs_root": lambda spec: str(lookup.runs_root(spec.runs_root)),
    "launch.nproc_per_node": _ranks,
    "launch.module": _module,
    "launch.python": _python,
    "launch.fork": _fork,
    "train.global_batch_size": _global_batch,
    "train.shard_size": _shard_size,
    "train.deterministic": _deterministic,
    "checkpoint.interval": _interval,
    "checkpoint.best": _best,
    "checkpoint.best_mode": _best_mode,
    "log.wandb_project": lambda spec: None if spec.log.wandb == "off" else spec.name,
}
