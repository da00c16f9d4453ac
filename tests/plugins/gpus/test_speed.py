"""What is shown of the speed beside samples/s."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slurm_job_kit.trainer.model.build import count_flops
from slurm_job_kit.trainer.plugins.gpus.hooks import Speed, peak_flops
from slurm_job_kit.trainer.plugins.zoo.gpt import GPT


@pytest.mark.parametrize(
    ("device", "precision", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989),
        ("NVIDIA H100 PCIe", "fp16", 756),
        ("NVIDIA L4", "bf16", 121),
        ("NVIDIA L40S", "bf16", 362),
        ("NVIDIA A100-SXM4-80GB", "fp32", None),
        ("NVIDIA GeForce RTX 9090", "bf16", None),
    ],
)
def test_the_peak_is_that_of_the_device_in_half_precision(device, precision, tflops):
    found = peak_flops(device, precision)
    assert found == (None if tflops is None else tflops * 1e12)


def test_a_transformer_does_two_flops_per_weight_and_token_in_its_forward_pass():
    model, tokens = GPT(256, 64, n_layer=2, n_embd=64), torch.zeros(4, 64, dtype=torch.int64)
    weights = sum(each.numel() for each in model.parameters() if each.ndim == 2) - 64 * 64  # wpe
    with count_flops(True) as counted:
        model(tokens)
    assert counted() == pytest.approx(2 * weights * tokens.numel(), rel=0.05)


@pytest.mark.parametrize(
    ("vocab_size", "items", "expected"), [(256, 4 * 64, {"tokens_per_s": 640.0}), (None, 4, {})]
)
def test_a_data_set_with_tokens_has_tokens_per_second(vocab_size, items, expected):
    replica = SimpleNamespace(fixed_items=items, batch_size=4)
    data = SimpleNamespace(facts=SimpleNamespace(vocab_size=vocab_size))
    reporter, cpu = SimpleNamespace(), torch.device("cpu")
    loop: Any = SimpleNamespace(reporter=reporter, replica=replica, data=data, device=cpu)
    Speed().restored(loop)
    assert reporter.more(10.0) == expected
