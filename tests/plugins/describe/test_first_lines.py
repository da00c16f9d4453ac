"""The lines at the start of rank 0's log."""

from pathlib import Path

from torch import nn

from slurm_job_kit.jobs.contract.batch_sizes import BatchSizes
from slurm_job_kit.jobs.contract.spec import Spec, Train
from slurm_job_kit.trainer.data.batches import TrainingLength
from slurm_job_kit.trainer.plugins.describe.first_lines import start_lines
from tests.core.ranks import context_of, place_of


def test_the_log_begins_with_device_size_of_the_model_and_what_is_trained():
    train = Train(optimizer="adamw", lr=3e-4, schedule="cosine", warmup_steps=20, seed=7)
    context = context_of(Path("nowhere"), Spec(train=train), place_of(0, 2))
    module = nn.Sequential(nn.Linear(1000, 500), nn.Linear(500, 10))
    module[1].requires_grad_(False)
    length = TrainingLength(90, 9, 10, 48, 432)
    device, model, training = start_lines(context, module, length, BatchSizes(48, 3, 2))
    assert device.startswith("device cpu, ") and device.endswith(" GiB on the host")
    assert model == "model mini_resnet: 500,500 parameters and 5,010 frozen ones, 1.9 MiB"
    assert training == (
        "training: 90 steps of 48 samples (8 x 2 ranks x 3), classification, adamw lr 0.0003 "
        "weight_decay 0, schedule cosine after 20 steps of warm-up, fp32, seed 7, deterministic"
    )
