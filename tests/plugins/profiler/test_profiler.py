"""torch profiler traces: which steps and ranks, at stops and resumes, and with equal results."""

import gzip
import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slurm_job_kit.jobs.contract.spec import Profile, Spec
from slurm_job_kit.trainer.checkpoint.digest import tensors_sha256
from slurm_job_kit.trainer.plugins.profiler.hooks import callbacks
from slurm_job_kit.trainer.process.watcher import Pulse
from tests.core.ranks import context_of, place_of


@pytest.fixture
def tracer(tmp_path):
    def made(steps, ranks=(0,), rank=0, attempt=1):
        spec = Spec(profile=Profile(steps=list(steps), ranks=list(ranks)))
        (made,) = callbacks(Pulse())
        context = context_of(tmp_path, spec, place_of(rank), attempt)
        loop: Any = SimpleNamespace(context=context)
        made.restored(loop)
        return made

    return made


def train(tracer, steps):
    """The digest of the weights after some steps, each of which multiplies matrices once."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in steps:
        tracer.before_step(step)
        model(torch.full((2, 4), float(step))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        tracer.after_step(step)
    return tensors_sha256(model.state_dict())


def traced(tmp_path):
    """How many forward passes each trace has, by its name."""
    passes = {}
    for path in sorted((tmp_path / "tensorboard" / "profile").glob("*.gz")):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        passes[path.name] = sum(event.get("name") == "aten::addmm" for event in events)
    return passes


def test_a_trace_has_the_chosen_steps_and_the_same_weights_come_out(tracer, tmp_path, capsys):
    untraced = train(tracer([]), range(1, 9))
    assert train(tracer([3, 5]), range(1, 9)) == untraced
    name = "attempt-1-rank-00000-steps-3-5.pt.trace.json.gz"
    assert traced(tmp_path) == {name: 3}
    path = tmp_path / "tensorboard" / "profile" / name
    assert capsys.readouterr().out == f"trace of steps 3 to 5: {path}\n"


def test_other_ranks_trace_nothing(tracer, tmp_path):
    train(tracer([1, 2], ranks=[0, 2], rank=1), range(1, 4))
    assert not (tmp_path / "tensorboard").exists()
    train(tracer([1, 2], ranks=[0, 2], rank=2), range(1, 4))
    assert traced(tmp_path) == {"attempt-1-rank-00002-steps-1-2.pt.trace.json.gz": 2}


def test_a_stop_writes_the_steps_traced_so_far_and_the_resume_traces_the_rest(tracer, tmp_path):
    stopped = tracer([3, 6])
    train(stopped, range(1, 5))
    stopped.end()
    train(tracer([3, 6], attempt=2), range(5, 9))
    assert traced(tmp_path) == {
        "attempt-1-rank-00000-steps-3-4.pt.trace.json.gz": 2,
        "attempt-2-rank-00000-steps-5-6.pt.trace.json.gz": 2,
    }


def test_an_error_in_writing_a_trace_does_not_end_the_training(tracer, tmp_path, capsys):
    (tmp_path / "tensorboard").write_text("in the way")
    train(tracer([1, 2]), range(1, 4))
    assert "warning: no trace of steps 1 to 2: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("profile: {steps: [3]}", "profile.steps: [3] is not a range of steps\n  hint: write the"),
        ("profile: {steps: [0, 3]}", "profile.steps: [0, 3] is not a range of steps"),
        ("profile: {steps: [5, 3]}", "profile.steps: [5, 3] is not a range of steps"),
    ],
)
def test_steps_and_ranks_that_are_none_are_refused_with_a_hint(refuse, text, message):
    assert message in refuse(text)
