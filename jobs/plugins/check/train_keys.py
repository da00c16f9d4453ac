"""Checks of train that types cannot express: names, and keys that exclude or need each other."""

from collections.abc import Iterator

from ...contract import spec as spec_keys
from ...contract.batch_sizes import uneven
from ...contract.problems import Problem, format_value
from ...contract.spec import METRIC_MODES, OPTIMIZERS, Spec, Train

_KNOWN = {
    "model": spec_keys.MODELS,
    "dataset": spec_keys.DATASETS,
    "objective": spec_keys.OBJECTIVES,
    "optimizer": spec_keys.OPTIMIZERS,
    "schedule": spec_keys.SCHEDULES,
    "transform": spec_keys.TRANSFORMS,
    "strategy": spec_keys.STRATEGIES,
}


def problems(spec: Spec) -> Iterator[Problem]:
    yield from _batch(spec)
    yield from _names(spec.train)
    yield from _pairs(spec.train)
    yield from _best(spec)


def problem(name: str, what: str, hint: str, *also: str) -> Problem:
    """Return a problem with a key of the section train; `also`: the dotted keys it depends on."""
    others = tuple(tuple(other.split(".")) for other in also)
    return Problem(("train", name), what, hint, others)


def _batch(spec: Spec) -> Iterator[Problem]:
    """Check the batch size. With launch.nproc_per_node auto the ranks may share it unevenly."""
    train, total = spec.train, spec.train.global_batch_size
    if total is None:
        return
    if train.grad_accum_steps != 1:
        what = f"excludes train.global_batch_size {total}, from which the trainer computes it"
        yield problem("grad_accum_steps", what, "keep one of them", "train.global_batch_size")
    world_size = 1 if spec.launch.nproc_per_node == "auto" else spec.num_ranks
    also = ("slurm.nodes", "launch.nproc_per_node")
    if not spec.slurm.is_range and world_size > 0 and total % world_size:
        yield problem("global_batch_size", *uneven(total, world_size), *also)


def _names(train: Train) -> Iterator[Problem]:
    """Yield each name that is neither built in nor an import path; a strategy is built in."""
    for key, known in _KNOWN.items():
        name = getattr(train, key)
        if name is not None and name not in known and (":" not in name or key == "strategy"):
            hint = f"known: {', '.join(known)}; or your own package.module:callable"
            yield problem(key, f"there is no {key} {format_value(name)}", hint)


def _pairs(train: Train) -> Iterator[Problem]:
    """Yield keys that exclude or need another key, without which they would have no effect."""
    # The loop sets the learning rate; the others would win over the key, or lose to it.
    of_built_in = {"momentum", "nesterov", "weight_decay"}
    taken = {"lr"} | (of_built_in if train.optimizer in OPTIMIZERS else set())
    for name in sorted(taken & set(train.optimizer_args)):
        hint = f"write train.{name}: {format_value(train.optimizer_args[name])}"
        yield problem("optimizer_args", f"{name} has a key of its own", hint, f"train.{name}")
    if train.nesterov and train.optimizer == "adamw":
        yield problem("nesterov", "needs train.optimizer sgd", "leave it out", "train.optimizer")
    if train.label_smoothing and train.objective != "classification":
        what = f"is for train.objective classification, not {train.objective}"
        hint = "leave it out; your own objective can take it from objective_args"
        yield problem("label_smoothing", what, hint, "train.objective")
    if train.transform_args and train.transform is None:
        hint = "write transform: image, or leave transform_args out"
        yield problem("transform_args", "needs a train.transform", hint, "train.transform")


def _best(spec: Spec) -> Iterator[Problem]:
    """Check the metric that chooses the best checkpoint, and what depends on it."""
    best, mode = spec.checkpoint.best, spec.checkpoint.best_mode
    if best is None:
        if spec.train.early_stop_patience is not None:
            what, hint = "needs checkpoint.best, which is null", "name a metric, such as eval_loss"
            yield problem("early_stop_patience", what, hint, "checkpoint.best")
    elif best != "auto" and best not in METRIC_MODES and mode == "auto":
        hint = "write best_mode: min, or best_mode: max"
        what = f"{format_value(best)} is not built in: the kit does not know which value is better"
        yield Problem(("checkpoint", "best"), what, hint, (("checkpoint", "best_mode"),))
