"""The pure parts of the trainer: order of the samples, splits, schedule, digest, exactness."""

import pytest
import torch
from torch import nn

from jobs.spec import Train
from trainer import datasets, models, optim
from trainer.build import Replica
from trainer.checkpoint import restore
from trainer.context import DistributedContext
from trainer.data import Batches, num_classes
from trainer.digest import weights_sha256
from trainer.environment import exactness, extended
from trainer.errors import UserError
from trainer.events import Events
from trainer.plugins import call
from trainer.seeds import mix


def epoch_of(batches, epoch):
    """Every rank's indices in an epoch, in the order of steps and ranks."""
    order = batches.order(epoch)
    first = epoch * batches.steps_per_epoch
    return [
        batches.micro_batch(order, step, rank).tolist()
        for step in range(first, first + batches.steps_per_epoch)
        for rank in range(batches.world_size)
    ]


def test_an_epoch_uses_each_sample_once_but_the_dropped_ones():
    batches = Batches(num_samples=455, micro_batch_size=8, world_size=2, seed=0)
    used = sum(epoch_of(batches, 3), [])
    assert len(used) == len(set(used)) == 448
    assert batches.describe() == "28 batches per rank, 56 in all, 448 samples an epoch, 7 dropped"


def test_the_order_is_a_pure_function_of_seed_and_epoch():
    batches = Batches(num_samples=455, micro_batch_size=8, world_size=2, seed=0)
    torch.manual_seed(1)
    first = batches.order(5)
    torch.manual_seed(2)
    assert torch.equal(batches.order(5), first)
    assert not torch.equal(batches.order(6), first)
    other = Batches(num_samples=455, micro_batch_size=8, world_size=2, seed=1)
    assert not torch.equal(other.order(5), first)


def test_the_sequence_of_samples_does_not_depend_on_the_world_size():
    sequences = [
        sum(epoch_of(Batches(455, 12 // world_size, world_size, 0), 2), [])
        for world_size in (1, 2, 3, 4)
    ]
    assert all(sequence == sequences[0] for sequence in sequences)


def test_a_batch_larger_than_the_set_names_both_sides():
    with pytest.raises(UserError, match=r"300 x 2 ranks .* 600, but .* only 455 samples"):
        Batches(num_samples=455, micro_batch_size=300, world_size=2, seed=0)


@pytest.mark.parametrize(
    ("name", "sizes"), [("breast_cancer", (455, 114)), ("digits", (1437, 360))]
)
def test_splits_are_fixed_stratified_and_disjoint(name, sizes):
    train, test = datasets.create(name, {})
    assert (len(train), len(test)) == sizes
    torch.manual_seed(5)
    again, _ = datasets.create(name, {})
    assert torch.equal(train.inputs, again.inputs)
    shares = [torch.bincount(part.labels) / len(part) for part in (train, test)]
    assert torch.allclose(*shares, atol=0.01)


def test_the_two_parts_of_a_split_share_no_sample():
    labels = torch.arange(569) % 3
    train, test = datasets.stratified_split(labels)
    assert sorted(torch.cat([train, test]).tolist()) == list(range(569))
    assert len(train) == 455


def test_the_cancer_table_is_standardised_by_the_training_set():
    train, test = datasets.create("breast_cancer", {})
    assert torch.allclose(train.inputs.mean(0), torch.zeros(30), atol=1e-5)
    assert torch.allclose(train.inputs.std(0), torch.ones(30), atol=1e-5)
    assert not torch.allclose(test.inputs.mean(0), torch.zeros(30), atol=1e-3)


def test_digits_are_eight_by_eight_pixels_up_to_one():
    train, test = datasets.create("digits", {})
    assert train.inputs.dtype == torch.uint8 and num_classes(train, test) == 10
    images, labels = train.batch(torch.arange(100))
    assert images.shape == (100, 1, 8, 8) and images.dtype == torch.float32
    assert images.min() >= 0 and images.max() == 1
    assert torch.equal(labels, train.labels[:100])


def test_mini_resnet_has_three_stages_of_two_blocks():
    model = models.create("mini_resnet", {}, torch.zeros(5, 1, 8, 8), 10)
    assert [block.conv2.out_channels for block in model.blocks] == [64, 64, 128, 128, 256, 256]
    assert model.blocks(model.stem(torch.zeros(2, 1, 8, 8))).shape == (2, 256, 2, 2)
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_model_arguments_of_the_spec_win():
    model = models.create("mlp", {"num_classes": 7, "hidden": [5]}, torch.zeros(4, 30), 2)
    assert model(torch.zeros(3, 30)).shape == (3, 7)


def test_unknown_names_and_arguments_are_the_users_error():
    with pytest.raises(UserError, match=r"train.model: 'resnet' is neither one of mlp nor"):
        call("train.model", "resnet", {"mlp": dict}, {})
    with pytest.raises(UserError, match="train.model: nowhere:model: No module named 'nowhere'"):
        call("train.model", "nowhere:model", {}, {})
    with pytest.raises(UserError, match="train.model: os:nothing: module 'os' has no attribute"):
        call("train.model", "os:nothing", {}, {})
    with pytest.raises(UserError, match="train.model_args: .*unexpected keyword argument 'width'"):
        models.create("mlp", {"width": 3}, torch.zeros(4, 30), 2)


def test_the_learning_rate_warms_up_and_falls_to_zero():
    train = Train(lr=0.4, warmup_steps=4, schedule="cosine")
    rates = [optim.lr_at(step, 104, train) for step in range(104)]
    assert rates[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    assert rates[54] == pytest.approx(0.2)
    assert 0 < rates[-1] < 0.001
    assert optim.lr_at(50, 104, Train(lr=0.4)) == 0.4


def test_vectors_get_no_weight_decay():
    matrices, vectors = optim.create(nn.Linear(3, 2), Train(weight_decay=0.1)).param_groups
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.1, 0.0)


def test_seeds_differ_in_every_part():
    seeds = {mix(kind, 0, step, rank) for kind in (1, 2) for step in range(50) for rank in range(4)}
    assert len(seeds) == 400 and all(0 <= seed < 2**63 for seed in seeds)
    assert mix(1, 2) != mix(2, 1)


def test_the_digest_changes_with_any_bit_of_a_parameter_or_buffer():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    digest = weights_sha256(model)
    assert digest == weights_sha256(model) and len(digest) == 64
    model[1].num_batches_tracked += 1
    changed = weights_sha256(model)
    assert changed != digest
    with torch.no_grad():
        model[0].weight.view(-1).view(torch.int32)[4] ^= 1
    assert weights_sha256(model) not in (digest, changed)


def test_the_digest_knows_zero_from_minus_zero_and_shapes():
    def digest(tensor):
        module = nn.Module()
        module.register_buffer("x", tensor)
        return weights_sha256(module)

    values = [torch.zeros(4), -torch.zeros(4), torch.zeros(2, 2), torch.zeros(8).half()]
    assert len({digest(value) for value in values}) == 4


def test_exactness_names_what_changed():
    first = {"torch": "2.13", "world size": 3, "ranks": [1, 1, 1]}
    assert exactness(extended([first], dict(first)), True)[0] == "bitwise"
    assert exactness([first], False)[0] == "sequence"
    other = extended([first], {**first, "world size": 2})
    assert exactness(other, True) == ("sequence", "world size was 3, then 2")
    moved = extended([first], {**first, "ranks": [1, 2, 1]})
    assert exactness(moved, True)[0] == "sequence"


def context_of(rank, world_size):
    names = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0}
    names |= {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    return DistributedContext.from_env({name: str(value) for name, value in names.items()})


def test_the_context_comes_from_torchruns_variables():
    context = context_of(2, 4)
    assert (context.rank, context.local_rank, context.world_size) == (2, 2, 4)
    assert not context.is_first
    with pytest.raises(UserError, match="RANK, LOCAL_RANK, .* not set: start it with torchrun"):
        DistributedContext.from_env({})


def replica_of(module):
    return Replica(module, module, optim.create(module, Train()))


def saved_state(replica, **changes):
    state = {"global_step": 6, "last_eval_step": 5, "metrics": {}, "metrics_bytes": 0}
    return {
        "model": replica.module.state_dict(),
        "optimizer": replica.optimizer.state_dict(),
        "optimizer_class": "SGD",
        "loss_windows": torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64),
        "global_batch_size": 12,
        "environments": [],
        **state,
        **changes,
    }


@pytest.mark.parametrize(("rank", "world_size", "window"), [(1, 3, 2), (0, 2, 6), (1, 2, 0)])
def test_loss_windows_go_to_their_ranks_or_together_to_the_first(rank, world_size, window):
    replica = replica_of(nn.Linear(2, 2))
    state = restore(saved_state(replica), replica, context_of(rank, world_size), 12)
    assert (state.loss_window.tolist(), state.global_step) == ([window], 6)


def test_a_checkpoint_of_another_model_or_batch_names_both_sides():
    replica, other = replica_of(nn.Linear(2, 2)), replica_of(nn.Linear(2, 3))
    context = context_of(0, 2)
    with pytest.raises(UserError, match=r"it has weight \(3, 2\), train.model has weight \(2, 2\)"):
        restore(saved_state(other), replica, context, 12)
    more = {**replica.module.state_dict(), "x": torch.zeros(1)}
    with pytest.raises(UserError, match=r"it has x \(1,\), train.model has no x"):
        restore(saved_state(replica, model=more), replica, context, 12)
    with pytest.raises(UserError, match="the state of AdamW, but train.optimizer is SGD"):
        restore(saved_state(replica, optimizer_class="AdamW"), replica, context, 12)
    with pytest.raises(
        UserError, match=r"of 12, this start has 16: set train.micro_batch_size to 6"
    ):
        restore(saved_state(replica), replica, context, 16)


def test_events_before_the_run_directory_is_known_are_kept(tmp_path):
    from jobs.rundir import RunDir, read_jsonl

    events = Events(rank=2)
    events.event("start", t=12.5)
    events.open(RunDir(tmp_path / "elsewhere"), attempt=1)
    events.event("init")
    events.open(RunDir(tmp_path), attempt=1)
    records = read_jsonl(tmp_path / "timeline" / "rank-00002.jsonl")
    assert [(record["event"], record["attempt"]) for record in records] == [
        ("start", 1),
        ("init", 1),
    ]
    assert records[0]["t"] == 12.5
