"""Builds model and optimizer of this rank, in the order that a bitwise resume needs."""

import copy
import functools
from collections.abc import Callable

import torch
from torch import nn

from .. import seeds
from ..contract import METRIC_MODES, Train
from ..data.sources import Batch, check_plain
from ..errors import UserError
from ..process.context import gather
from ..process.run_handle import RankContext
from ..strategy import create as create_strategy
from ..strategy.interface import Strategy
from ..user_code import is_user_code, user_code
from . import models, objectives, optim, precision
from .objectives import Objective, Sums, means
from .precision import Precision
from .replica import BestMetric, Replica
from .training_data import Data


def set_up_torch(context: RankContext) -> None:
    """Set torch's global switches on which results depend: threads and choice of operators."""
    torch.set_num_threads(context.run.spec.launch.threads_per_rank)
    torch.backends.cudnn.benchmark = not context.is_deterministic
    torch.use_deterministic_algorithms(context.is_deterministic)
    # Filling memory that is overwritten anyway took 5 to 8 % of a small CNN's step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def build_replica(context: RankContext, data: Data, will_load: bool = False) -> Replica:
    """Return model, wrapper, optimizer and objective; with initial weights unless `will_load`.

    DDP rebuilds its gradient buckets after the first backward pass of a process, which changes the
    order of summation. So every attempt, including the first, spends that backward pass on an
    example and then loads its state. Otherwise the first step after a resume differs from 3 ranks
    on.
    """
    spec = context.train
    numbers = precision.set_up(spec, context.device)
    example = data.train_batches.example()
    with user_code("train.objective", spec.objective):
        objective = objectives.create(data.facts)
    strategy = create_strategy(spec, context.distributed, context.device)
    # An optimizer or objective of the user may keep what it finds in the initial weights.
    is_own = is_user_code(spec.objective)
    is_overwritten = will_load and not (is_own or is_user_code(spec.optimizer))
    create = functools.partial(models.create, data.facts, example, is_overwritten)
    module, wrapped = _shared_module(context, strategy, create, is_overwritten)
    optimizer = optim.create(module, spec, strategy.trained_parameters(module))
    initial = None if will_load else copy.deepcopy(module.state_dict())
    key = "objective" if is_own else "model"  # an own objective calls the model
    with user_code(f"train.{key}", getattr(spec, key)):
        sums = throw_away_pass(context, wrapped, numbers, objective, example)
        names = tuple(sums.metrics)
        metrics = means(names, sums.row().tolist(), objective)
    strategy.attach(optimizer)
    if initial is not None:
        module.load_state_dict(initial)
    sizes = data.train_batches.sizes
    return Replica(
        wrapped=wrapped,
        module=module,
        strategy=strategy,
        optimizer=optimizer,
        precision=numbers,
        objective=objective,
        batch_size=data.train_batches.sizes.micro_batch_size,
        fixed_items=_fixed_items(sums, context, sizes.is_even),
        idle_rounds=sizes.idle_rounds(context.distributed.rank),
        metric_names=names,
        best=best_metric(context, list(metrics), data.held_out is not None),
    )


def _shared_module(
    context: RankContext, strategy: Strategy, create: Callable[[], nn.Module], is_overwritten: bool
) -> tuple[nn.Module, nn.Module]:
    """Return the model with this rank's part of the weights, and what the objective calls."""
    spec = context.train
    # After the example, because a user's transform may draw random numbers there.
    seeds.seed_generators(seeds.mix(seeds.WEIGHTS, spec.seed), context.device)
    with user_code("train.model", spec.model):
        module = strategy.to_device(strategy.create(create))
        if spec.channels_last:
            module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if spec.sync_batchnorm:
            module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
        # Before the model is shared: what exchanges parameters or gradients stays outside of it.
        strategy.prepare(module)
        check_trainable(module, spec)
        check_plain(f"train.model: state_dict() of {spec.model}", module.state_dict())
        strategy.check(module)
        return module, strategy.wrap(module, is_overwritten)  # each rank has rank 0's weights then


def _fixed_items(sums: Sums, context: RankContext, is_even: bool) -> int | None:
    """Return the number of items of every batch; None for a tensor, or batches of several sizes."""
    fixed = sums.num_items if isinstance(sums.num_items, int) else None
    if fixed is not None and fixed < 1:
        what = f"train.objective {context.train.objective} returns num_items {fixed}"
        hint = "return how many items the loss is the sum over, as a tensor [] if it may be none"
        raise UserError(what, hint)
    if not is_even:
        return None
    # All ranks: with different numbers each would divide its loss by another one, without an error.
    own = torch.tensor([-1 if fixed is None else fixed], device=context.device)
    counts = torch.cat(gather(own)).tolist()
    if len(set(counts)) > 1:
        shown = ["a tensor" if number == -1 else str(number) for number in counts]
        what = f"train.objective {context.train.objective} returns different num_items on the ranks"
        hint = "return it as a tensor, which is added up over the ranks"
        raise UserError(f"{what}, {', '.join(shown)}", hint)
    return fixed


def best_metric(context: RankContext, names: list[str], has_held_out: bool) -> BestMetric | None:
    """Return the metric of checkpoint.best. Raises: UserError where there is no such metric."""
    checkpoint = context.run.spec.checkpoint
    name = checkpoint.best
    if name == "auto":
        name = "eval_accuracy" if "accuracy" in names else "eval_loss"
        name = name if has_held_out else None
    if context.train.early_stop_patience is not None and not has_held_out:
        what = "train.early_stop_patience needs held-out samples"
        raise UserError(f"{what}, but train.dataset {context.train.dataset} returns none")
    if name is None:
        return None
    known = [f"eval_{each}" for each in names] if has_held_out else []
    if name not in known:
        found = ", ".join(known) or "no held-out metric: train.dataset returns no held-out part"
        what = f"checkpoint.best is {name}, but train.objective {context.train.objective}"
        raise UserError(f"{what} has {found}")
    mode = METRIC_MODES.get(name, "min") if checkpoint.best_mode == "auto" else checkpoint.best_mode
    return BestMetric(name, mode)


def check_trainable(module: nn.Module, train: Train) -> None:
    """Raise UserError where no parameter trains."""
    if not any(parameter.requires_grad for parameter in module.parameters()):
        what = f"train.model {train.model} has no trainable parameter"
        raise UserError(f"{what}: add one, or set requires_grad of one to True")


def throw_away_pass(
    context: RankContext,
    wrapped: nn.Module,
    numbers: Precision,
    objective: Objective,
    example: Batch,
) -> Sums:
    """Run one forward and backward pass with the exchange of gradients; return its sums.

    Raises UserError where the objective or the model does not fit the data, or where parameters
    get no gradient.
    """
    spec = context.train
    seeds.seed_generators(seeds.mix(seeds.WEIGHTS, spec.seed, 1), context.device)
    with numbers.autocast():
        sums = objective(wrapped, example)
    objectives.check_sums(sums, spec.objective)
    sums.loss.backward()  # type: ignore[no-untyped-call]
    trained = {name: each for name, each in wrapped.named_parameters() if each.requires_grad}
    unused = [name.removeprefix("module.") for name, each in trained.items() if each.grad is None]
    if unused and not (spec.find_unused_parameters or spec.static_graph):
        what = f"{len(unused)} parameters got no gradient, the first is {unused[0]}"
        hint = "set train.find_unused_parameters to true, or freeze them"
        raise UserError(f"train.model {spec.model}: {what}", hint)
    wrapped.zero_grad(set_to_none=True)
    return sums
