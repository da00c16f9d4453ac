"""Autocast, TF32 and the scaler of fp16, on a CPU."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from slurm_job_kit.jobs.contract.spec import Train
from slurm_job_kit.trainer.model import optim, precision

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def switches():
    """TF32's switches are put back; one thread, since these models are tiny."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def set_up(train):
    return precision.set_up(train, CPU)


@pytest.mark.parametrize(("name", "is_on"), [("fp32", False), ("tf32", True), ("bf16", False)])
def test_tf32_is_on_for_products_and_convolutions_only_where_asked(name, is_on):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not is_on
    set_up(Train(precision=name))
    assert torch.backends.cuda.matmul.allow_tf32 is is_on
    assert torch.backends.cudnn.allow_tf32 is is_on


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_autocast_computes_in_the_type_of_the_spec_and_the_loss_in_fp32(name, dtype):
    numbers = set_up(Train(precision=name))
    with numbers.autocast():
        scores = nn.Linear(3, 2)(torch.ones(4, 3))
        loss = cross_entropy(scores, torch.zeros(4, dtype=torch.int64))
    assert (scores.dtype, loss.dtype) == (dtype, torch.float32)
    assert numbers.scaler.is_enabled() == (name == "fp16")


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_step_of_infinite_gradients_is_skipped_and_leaves_no_trace_but_the_scale(optimizer, clip):
    train = Train(precision="fp16", optimizer=optimizer, grad_clip_norm=clip)
    numbers = set_up(train)
    torch.manual_seed(0)
    module, twin = nn.Linear(40, 30), nn.Linear(40, 30)
    twin.load_state_dict(module.state_dict())
    start = {name: value.clone() for name, value in module.state_dict().items()}
    stepper, fresh = optim.create(module, train), optim.create(twin, train)
    numbers.scaler.scale(module(torch.ones(2, 40)).sum()).backward()
    assert module.weight.grad is not None
    module.weight.grad[3, 5] = torch.inf
    optim.clip_and_step(stepper, numbers.scaler, [*module.parameters()], train)
    assert all(torch.equal(value, start[name]) for name, value in module.state_dict().items())
    assert numbers.scaler.get_scale() == 2.0**15

    # The next step is that of an optimizer which never saw them.
    other = set_up(train)
    other.scaler.load_state_dict(numbers.scaler.state_dict())
    for one, its, scaler in ((module, stepper, numbers.scaler), (twin, fresh, other.scaler)):
        scaler.scale(one(torch.ones(2, 40)).sum()).backward()
        optim.clip_and_step(its, scaler, [*one.parameters()], train)
    assert torch.equal(module.weight, twin.weight) and not torch.equal(twin.weight, start["weight"])
