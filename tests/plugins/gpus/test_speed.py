"""What rank 0 shows of the speed beside samples/s."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.contract.spec import Log, Spec, Train
from slurm_job_kit.trainer.plugins.gpus.hooks import callbacks, measured, peak_flops
from slurm_job_kit.trainer.process.watcher import Pulse
from tests.core.test_loop import train


@pytest.mark.parametrize(
    ("device", "precision", "tflops"),
    [
        ("NVIDIA B200", "bf16", 2250),
        ("NVIDIA GB200", "bf16", 2500),
        ("NVIDIA H200", "bf16", 989),
        ("NVIDIA H200 NVL", "bf16", 835),
        ("NVIDIA H100 NVL", "fp16", 835),
        ("NVIDIA A100-SXM4-80GB", "fp32", None),
        ("NVIDIA A100-40C", "bf16", None),  # a vGPU
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "bf16", None),
        ("NVIDIA XB200", "bf16", None),
    ],
)
def test_the_peak_is_that_of_the_device_in_half_precision(device, precision, tflops):
    found = peak_flops(device, precision)
    assert found == (None if tflops is None else tflops * 1e12)


def windows():
    return [torch.arange(6)] * 60, None


@pytest.mark.usefixtures("process_group")
def test_tokens_per_second_are_in_the_log_the_progress_and_the_trackers(tmp_path, capsys):
    names = {"model": "torch.nn:Embedding", "dataset": f"{__name__}:windows"}
    args: dict[str, Any] = {"model_args": {"num_embeddings": 6, "embedding_dim": 6}, **names}
    spec = Spec(train=Train(objective="language_model", **args), log=Log(every_steps=1))
    seen = []
    speed: Any = callbacks(Pulse())[0]
    speed.reported = lambda step, values: seen.append(values)
    run, _ = train(tmp_path, spec, callbacks=[speed])
    last = read_json(run.progress)["speed"]
    assert last["tokens_per_s"] == pytest.approx(5 * last["samples_per_s"], abs=1)
    assert last.items() <= seen[-1].items()
    assert f" samples/s  {last['tokens_per_s']:.0f} tokens/s  0 s left" in capsys.readouterr().out
    assert "per_s" not in run.metrics.read_text()  # without times, so that a rerun has the same


@pytest.fixture
def gpu(monkeypatch):
    """A loop of one of 8 ranks. No GPU in the tests: a fake device."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 90 + device.index)
    monkeypatch.setattr(torch.cuda, "device_memory_used", lambda _: 65 * 2**30)
    train = Train(precision="bf16", objective="language_model")
    loop = SimpleNamespace(device=torch.device("cuda", 3), train=train)
    loop.distributed = SimpleNamespace(world_size=8)
    weight = torch.empty(10**6, 10**3, device="meta", requires_grad=True)
    loop.replica = SimpleNamespace(parameters=[weight], fixed_items=128, batch_size=4)
    return loop


def test_mfu_is_the_share_of_the_peak_and_the_driver_has_use_and_memory(gpu):
    # 32,000 tokens/s on each rank, 6 GFLOP each for 10^9 parameters: 192 of 989 TFLOP/s.
    use = {"gpu_use": 0.93, "gpu_gib": 65.0}
    assert measured(gpu, 8000.0) == {"tokens_per_s": 256000.0, "mfu": 0.1941, **use}
    gpu.replica.parameters[0].requires_grad = False  # without its gradient
    assert measured(gpu, 8000.0)["mfu"] == 0.1294
    gpu.replica.fixed_items = None
    assert measured(gpu, 8000.0) == use
    gpu.replica.fixed_items, gpu.train = 4, Train()
    assert measured(gpu, 8000.0) == use


def test_a_driver_that_does_not_answer_leaves_its_values_out(gpu, monkeypatch):
    monkeypatch.delattr(torch.cuda, "utilization")
    assert measured(gpu, 8000.0) == {"tokens_per_s": 256000.0, "mfu": 0.1941}
