"""The gradient is the mean over the items of all micro batches of all ranks, exactly."""

import functools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slurm_job_kit.jobs.contract.spec import Spec, Train
from slurm_job_kit.trainer.data.batches import Batches
from slurm_job_kit.trainer.data.sources import Samples
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.model import build, optim, precision
from slurm_job_kit.trainer.model.mean_gradient import MeanGradient
from slurm_job_kit.trainer.model.objectives import Sums
from slurm_job_kit.trainer.model.replica import Replica
from slurm_job_kit.trainer.model.training_data import build_data
from slurm_job_kit.trainer.strategy.interface import Strategy
from slurm_job_kit.trainer.training.loop import train_step
from tests.core.ranks import CPU, context_of, join, place_of, results

NUM_SAMPLES, BATCH_SIZE = 24, 2
TRAIN = Train(lr=1.0, momentum=0.0)  # a step changes the weights by the gradient
# (ranks, micro batches of each): the same samples in each case.
PLACES = [(1, 12), (2, 6), (3, 4), (4, 3)]
# No number of ranks but 1 divides the samples of an uneven step. By the limit of a micro batch:
# with 1 some ranks are idle in a round.
NUM_UNEVEN, LIMITS = 23, (4, 1)
EPS = 2.0**-50  # four times the spacing of float64 at 1


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()


@functools.cache
def samples():
    """Sequences of 1 to 7 items, padded to 7; the third micro batch has no item at all."""
    generator = torch.Generator().manual_seed(0)
    lengths = 1 + torch.arange(NUM_SAMPLES) * 5 % 7
    lengths[4:6] = 0
    mask = torch.arange(7) < lengths[:, None]
    x = torch.randn(NUM_SAMPLES, 7, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(NUM_SAMPLES, 7, generator=generator, dtype=torch.float64)
    return {"x": x, "y": y, "mask": mask}


def micro_batches():
    starts = range(0, NUM_SAMPLES, BATCH_SIZE)
    return [
        {name: value[start : start + BATCH_SIZE] for name, value in samples().items()}
        for start in starts
    ]


def masked(model, batch):
    error = (model(batch["x"]).squeeze(-1) - batch["y"]).square() * batch["mask"]
    far = ((error > 1) & batch["mask"]).sum()
    return Sums(error.sum(), batch["mask"].sum(), {"far": far})


def whole(objective, batches):
    """The gradients of the mean over all items, and the mean loss, without the kit."""
    module = net()
    sums = [objective(module, batch) for batch in batches]
    loss = torch.stack([each.loss for each in sums]).sum() / sum(each.num_items for each in sums)
    loss.backward()
    return [parameter.grad for parameter in module.parameters()], loss.item()


def uneven(limit, rank, world_size):
    """A rank's pairs of samples of one step, and its idle rounds."""
    train = Train(global_batch_size=NUM_UNEVEN, micro_batch_size=limit)
    batches = Batches.of(train, NUM_UNEVEN, world_size)
    x, y = samples()["x"][:, 0], samples()["y"][:, 0]
    parts = batches.micro_batches(batches.order(0), 0, rank)
    return [(x[part], y[part]) for part in parts], batches.idle_rounds(rank)


def stepped(objective, fixed_items, batches, idle_rounds=frozenset()):
    """(gradients, mean loss) of one step of the kit on this rank's batches."""
    module = net()
    replica = Replica(
        strategy=Strategy(TRAIN, place_of(), CPU),
        wrapped=DistributedDataParallel(module, gradient_as_bucket_view=True),
        module=module,
        optimizer=optim.create(module, TRAIN),
        precision=precision.set_up(TRAIN, CPU),
        objective=objective,
        batch_size=BATCH_SIZE,
        fixed_items=fixed_items,
        metric_names=("far",) if objective is masked else (),
        best=None,
        idle_rounds=idle_rounds,
    )
    before = [parameter.detach().clone() for parameter in module.parameters()]
    window = replica.empty_row()
    for row in train_step(replica, iter(batches), len(batches), TRAIN.lr, TRAIN):
        window += row
    dist.all_reduce(window)
    moved = [old - new.detach() for old, new in zip(before, module.parameters(), strict=True)]
    return moved, replica.means(window.tolist())["loss"]


def pairs():
    return [(batch["x"][:, 0], batch["y"][:, 0]) for batch in micro_batches()]


def squared(model, batch):
    """The squared error; an item is a sample."""
    error = (model(batch[0]).squeeze(-1) - batch[1]).square()
    return Sums(error.sum(), len(error))


CASES: dict[str, tuple[Any, int | None, list[Any]]] = {
    "masked": (masked, None, micro_batches()),
    "fixed": (squared, BATCH_SIZE, pairs()),
    "empty": (masked, None, [{**b, "mask": b["mask"] & False} for b in micro_batches()]),
}


def points():
    return Samples(torch.ones(8, 3), torch.zeros(8)), None


def counts_its_rank(model, batch):
    return Sums(model(batch[0]).sum(), dist.get_rank() + 1)


def refused(folder, place):
    """The error at the start where each rank returns another fixed number of items."""
    train = Train(
        dataset=f"{__name__}:points",
        model="torch.nn:Linear",
        model_args={"in_features": 3, "out_features": 1},
        objective=f"{__name__}:counts_its_rank",
        micro_batch_size=1,
    )
    context = context_of(folder, Spec(train=train), place)
    try:
        build.build_replica(context, build_data(context))
    except UserError as error:
        return str(error)


def in_groups(folder, rank):
    """What a rank finds in a group of each size in turn."""
    found: dict[Any, Any] = {}
    for world_size, num_batches in PLACES:
        if rank >= world_size:
            continue
        place = join(folder, rank, world_size)
        for case, (objective, fixed_items, batches) in CASES.items():
            own = batches[rank::world_size]
            assert len(own) == num_batches
            found[world_size, case] = stepped(objective, fixed_items, own)
        for limit in LIMITS:
            own, idle = uneven(limit, rank, world_size)
            found[world_size, limit] = stepped(squared, None, own, idle)
        if world_size == 3:
            found["refused"] = refused(folder, place)
        dist.barrier()
        dist.destroy_process_group()
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of four ranks found."""
    return results(in_groups, tmp_path_factory.mktemp("ranks"), 4)


@pytest.mark.parametrize("case", ["masked", "fixed"])
@pytest.mark.parametrize(("world_size", "num_batches"), PLACES)
def test_the_gradient_is_that_of_the_whole_batch(ranks, case, world_size, num_batches):
    objective, _, batches = CASES[case]
    check(ranks, world_size, case, whole(objective, batches))


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_gradient_of_an_uneven_share_is_that_of_the_whole_batch(ranks, limit, world_size):
    (batch,), _ = uneven(NUM_UNEVEN, 0, 1)
    check(ranks, world_size, limit, whole(squared, [batch]))


def check(ranks, world_size, case, exact):
    """Compare what each rank found with the exact gradients and loss."""
    expected, loss = exact
    for rank in range(world_size):
        gradients, mean = ranks[rank][world_size, case]
        assert mean == pytest.approx(loss, rel=1e-14)
        for gradient, exact in zip(gradients, expected, strict=True):
            # The weights are at most 1: a step rounds them to their spacing.
            assert torch.allclose(gradient, exact, rtol=0, atol=EPS)


@pytest.mark.parametrize("world_size", [1, 4])
def test_a_step_without_any_item_changes_no_weight(ranks, world_size):
    gradients, mean = ranks[0][world_size, "empty"]
    assert mean == 0 and all(not gradient.any() for gradient in gradients)


def test_ranks_with_different_fixed_numbers_of_items_are_refused_at_the_start(ranks):
    words = (
        f"train.objective {__name__}:counts_its_rank returns different num_items on the ranks, "
        "1, 2, 3\n  hint: return it as a tensor, which is added up over the ranks"
    )
    assert [each["refused"] for each in ranks[:3]] == [words] * 3


def sums_of(num_items):
    return Sums(torch.ones((), requires_grad=True), num_items)


def test_a_share_that_half_precision_cannot_hold_is_scaled_before_it_is_cut():
    items = 50_000_000
    mean = MeanGradient(num_batches=1, batch_size=1, fixed_items=items)
    loss = torch.ones((), dtype=torch.float16, requires_grad=True)
    assert mean.seed(Sums(loss, items), is_last=True).item() == pytest.approx(1 / items)


@pytest.mark.parametrize("num_items", [5, torch.tensor(4)])
def test_a_fixed_number_of_items_that_changes_is_refused_with_the_way_out(num_items):
    mean = MeanGradient(num_batches=2, batch_size=2, fixed_items=4)
    assert mean.seed(sums_of(4), is_last=False).item() == 1 / 8
    words = f"num_items 4 for one batch and {num_items} for another\n  hint: return it as a tensor"
    with pytest.raises(UserError) as caught:
        mean.seed(sums_of(num_items), is_last=True)
    assert words in str(caught.value)
