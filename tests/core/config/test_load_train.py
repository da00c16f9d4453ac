"""Keys of a training that exclude or need each other: refused at load, with a hint."""

import pytest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "train: {static_graph: true, grad_accum_steps: 2}",
            "train.static_graph: excludes train.grad_accum_steps 2: DDP loses gradients\n"
            "  hint: leave one of them out",
        ),
        (
            "train: {static_graph: true, global_batch_size: 64}",
            "train.static_graph: excludes train.global_batch_size, which may accumulate",
        ),
        (
            "{train: {global_batch_size: 16}, slurm: {nodes: 3}, launch: {nproc_per_node: 1}}",
            "train.global_batch_size: 16 cannot be shared evenly by 3 ranks\n"
            "  hint: write 15 or 18, or take 2 or 4 ranks",
        ),
        (
            "train: {global_batch_size: 64, grad_accum_steps: 2}",
            "train.grad_accum_steps: excludes train.global_batch_size 64, from which",
        ),
        (
            "{train: {global_batch_size: 64}, launch: {nproc_per_node: 2}, slurm: {nodes: 3}}",
            "train.global_batch_size: 64 cannot be shared evenly by 6 ranks\n"
            "  hint: write 60 or 66, or take 4 or 8 ranks",
        ),
        (
            "{train: {global_batch_size: 4}, launch: {nproc_per_node: 8}}",
            "4 cannot be shared evenly by 8 ranks\n  hint: write 8, or take 4 ranks",
        ),
        (
            "train: {sync_batchnorm: true}",
            "train.sync_batchnorm: needs GPUs, and slurm.gpus_per_node is 0\n  hint: set slurm",
        ),
        ("launch: {interface: ''}", "launch.interface: is empty"),
        ("launch: {stop_check_steps: 0}", "must be at least 1, or auto, not 0"),
    ],
)
def test_keys_that_exclude_each_other_are_refused_with_a_hint(refuse, text, message):
    errors = refuse(text)
    assert errors.startswith("x.yaml:1: ")
    assert message in errors
    assert errors.count("x.yaml:") == 1, "one mistake, one error"


@pytest.mark.parametrize(
    "name", ["=ib0", "^ib0", "ib0,ib1", "eth0:1", "ib 0", "/dev/ib0", "interface0123456"]
)
def test_an_interface_is_one_name_without_the_syntax_of_nccl(refuse, name):
    message = f'x.yaml:1: launch.interface: "{name}" is not the name of a network interface\n'
    assert message in refuse(f"launch: {{interface: '{name}'}}")


@pytest.mark.parametrize(
    "text",
    [
        "train: {static_graph: true}",
        "train: {static_graph: true, channels_last: true, bucket_cap_mb: 50}",
        "{train: {global_batch_size: 66}, launch: {nproc_per_node: 2}, slurm: {nodes: 3}}",
        # As many ranks as GPUs: that number is known where they are.
        "{train: {global_batch_size: 64}, slurm: {nodes: 3, gpus_per_node: 2}}",
        "{train: {global_batch_size: 64}, slurm: {nodes: 3}}",
        "{train: {sync_batchnorm: true}, slurm: {gpus_per_node: 1}}",
        "log: {wandb: off}",
        *(f"launch: {{interface: {name}}}" for name in ("ib0", "hsn", "eth0.100", "enp65s0f0np0")),
    ],
)
def test_keys_that_fit_each_other_are_accepted(take, text):
    take(text)
