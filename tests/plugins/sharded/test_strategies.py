"""Each strategy trains as ddp does: same start, same steps within rounding, fewer bytes."""

import pytest
import torch

from tests.plugins.sharded.strategy_kit import RUNS, run_ranks

pytestmark = pytest.mark.long  # several ranks

# The largest difference to ddp in one element of the weights.
TOLERANCE = {"bf16 gpt": 0.05, "bf16 resnet": 1e-5}
COMPARED = [run for run in RUNS if run[2] != "ddp"]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return run_ranks(tmp_path_factory.mktemp("ranks"))


def both(ranks, run):
    """What rank 0 has under a strategy and under ddp."""
    return ranks[0][run], ranks[0][(*run[:2], "ddp")]


def largest_difference(one, other):
    assert list(one) == list(other)
    return max((one[name].double() - other[name].double()).abs().max().item() for name in one)


@pytest.mark.parametrize("run", COMPARED, ids=str)
def test_every_strategy_starts_with_the_weights_of_ddp(ranks, run):
    others, ddp = both(ranks, run)
    assert largest_difference(others.initial, ddp.initial) == 0


@pytest.mark.parametrize("run", COMPARED, ids=str)
def test_steps_agree_with_ddp_within_rounding(ranks, run):
    others, ddp = both(ranks, run)
    assert largest_difference(ddp.final, ddp.initial) > 0.005
    assert largest_difference(others.final, ddp.final) < TOLERANCE.get(run[1], 1e-5)
    assert others.losses == pytest.approx(ddp.losses, rel=1e-3 if "bf16" in run[1] else 1e-6)
    assert others.held_out.tolist() == pytest.approx(ddp.held_out.tolist(), rel=1e-3)


@pytest.mark.parametrize("run", [run for run in RUNS if "uneven" in run[1]], ids=str)
def test_steps_of_an_uneven_share_are_those_of_one_rank(ranks, run):
    shared, alone = ranks[0][run], ranks[0][(1, run[1], "ddp")]
    assert largest_difference(shared.final, alone.final) < 1e-5


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_all_ranks_have_the_same_weights(ranks, run):
    parameters = [name for name in ranks[0][run].final if "running" not in name]
    for rank in range(1, run[0]):
        for name in parameters:
            assert torch.equal(ranks[rank][run].final[name], ranks[0][run].final[name])


@pytest.mark.parametrize("run", COMPARED, ids=str)
def test_the_ranks_share_the_optimizers_state(ranks, run):
    total = sum(ranks[0][(*run[:2], "ddp")].state_sizes)
    own = [sum(ranks[rank][run].state_sizes) for rank in range(run[0])]
    copies = 2 if run[2] == "hsdp" else 1
    assert sum(own) == copies * total
    assert max(own) < total or total == 0  # SGD without momentum has no state


def test_gradients_are_clipped_to_their_norm_over_all_ranks(ranks):
    run_result = ranks[0][2, "clipped", "fsdp"]
    names = [name for name in run_result.final if name != "lm_head.weight"]  # the embedding's
    moved = [
        (run_result.final[name] - run_result.initial[name]).double().square().sum()
        for name in names
    ]
    assert torch.stack(moved).sum().sqrt().item() == pytest.approx(0.1, rel=1e-4)


@pytest.mark.parametrize("run", [run for run in COMPARED if "resnet" in run[1]], ids=str)
def test_a_step_begins_with_the_buffers_of_rank_0(ranks, run):
    for rank in range(1, run[0]):
        buffers = ranks[rank][run].buffers
        assert buffers and largest_difference(buffers, ranks[0][run].buffers) == 0


@pytest.mark.parametrize("case", ["gpt", "accumulation"])
def test_fsdp_reduces_in_the_last_micro_batch_only(ranks, case):
    num_batches = 3 if case == "accumulation" else 1
    count = ranks[0][3, case, "fsdp"].collectives
    # Three blocks and the root; the root keeps its weights until the backward pass.
    assert count == {
        "_allgather_base_": num_batches * (4 + 3),
        "_reduce_scatter_base_": 4,
        "allreduce_": 1,  # the norm
    }


def test_hsdp_reduces_within_the_copies_and_then_across(ranks):
    count = ranks[0][4, "accumulation", "hsdp"].collectives
    assert (count["_reduce_scatter_base_"], count["allreduce_"]) == (4, 4 + 1)


def test_batchnorm_of_a_model_in_bf16_computes_in_fp32(ranks):
    # One all-gather more for the norms of each block and of the root.
    fp32, bf16 = (ranks[0][3, case, "fsdp"].collectives for case in ("resnet", "bf16 resnet"))
    assert bf16["_reduce_scatter_base_"] == 2 * fp32["_reduce_scatter_base_"]


def test_frozen_parameters_stay(ranks):
    run_result = ranks[0][3, "masked", "fsdp"]
    for name in ("frozen.weight", "frozen.bias"):
        assert torch.equal(run_result.final[name], run_result.initial[name])


def test_parameters_that_no_rank_uses_are_refused_at_the_start(ranks):
    for rank in range(3):
        assert "2 parameters got no gradient, the first is unused.weight" in ranks[rank]["unused"]
        assert ranks[rank]["allowed"] == ""
        assert "needs torch 2.13 or newer" in ranks[rank]["old torch"]
