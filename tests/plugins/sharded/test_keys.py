"""Keys that divide a model or treat its blocks: refused at load, with a hint."""

import pytest

from tests.plugins.check.test_parts import check as check
from tests.plugins.check.test_parts import of

REFUSED = {
    "train: {strategy: fsdp, static_graph: true}": "static_graph: is an option of DDP, which",
    "train: {strategy: fsdp, offload_optimizer: true}": "offload_optimizer: needs GPUs, and slurm.",
    "train: {strategy: fsdp, channels_last: true}": "channels_last: excludes train.strategy fsdp",
    "train: {strategy: fsdp, precision: fp16}": "precision: fp16 excludes train.strategy fsdp",
    "train: {strategy: fsdp, shard_size: 2}": "shard_size: is for train.strategy hsdp, not for",
    "{train: {strategy: hsdp, shard_size: 4}, launch: {nproc_per_node: 2}, slurm: {nodes: 3}}": (
        "train.shard_size: 4 does not divide the 6 ranks\n  hint: write a divisor, or strategy"
    ),
    "{train: {strategy: hsdp}, slurm: {nodes: 2}}": "hsdp shards within a node, and a node has one",
    "train: {shard_size: 1, strategy: hsdp}": "train.shard_size: must be at least 2, not 1",
    "train: {offload_optimizer: true}": "offload_optimizer: is for train.strategy fsdp and hsdp",
    "train: {strategy: ddp, reshard_after_forward: false}": "reshard_after_forward: is for train.",
    "train: {shard_modules: [Block]}": "shard_modules: has no effect with train.strategy ddp",
    "{slurm: {nodes: 2-3}, launch: {nproc_per_node: 2}, "
    "train: {strategy: hsdp, shard_size: 4, global_batch_size: 12}}": (
        "train.shard_size: 4 does not divide the 6 ranks\n  hint: "
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_keys_that_exclude_each_other_are_refused_with_a_hint(refuse_one, text):
    refuse_one(text, REFUSED[text])


@pytest.mark.parametrize(
    "text",
    [
        "{train: {strategy: hsdp}, slurm: {nodes: 2}, launch: {nproc_per_node: 2}}",
        "{train: {strategy: hsdp, shard_size: 4}, slurm: {nodes: 2, gpus_per_node: a100:4}}",
        "train: {shard_modules: [Block], compile: blocks}",
        "train: {strategy: fsdp, gradient_as_bucket_view: true, sync_batchnorm: false}",
        "{train: {strategy: fsdp, offload_optimizer: true}, slurm: {gpus_per_node: 4}}",
    ],
)
def test_keys_that_fit_each_other_are_accepted(take, text):
    take(text)


def test_a_strategy_of_another_name_has_one_problem(mistake):
    assert mistake("train: {strategy: fsdp2, shard_size: 2}").path == ("train", "strategy")


def test_a_model_of_more_than_a_gibibyte_gets_no_memory(check):
    assert check(of(model="mine:Net", model_args={"hidden": 2 * 10**6})) is None
