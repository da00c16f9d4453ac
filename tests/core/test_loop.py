"""The training loop against the same training written by hand, with one rank."""

import dataclasses
import itertools
import math
import random
import re
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slurm_job_kit.jobs.base.files import read_json, read_jsonl
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Checkpoint, Log, Spec, Train
from slurm_job_kit.trainer.checkpoint import commit
from slurm_job_kit.trainer.checkpoint.checkpoints import Checkpoints
from slurm_job_kit.trainer.data.batches import Batches
from slurm_job_kit.trainer.data.sources import Samples
from slurm_job_kit.trainer.errors import NotFinite
from slurm_job_kit.trainer.process.step_agreement import StepAgreement
from slurm_job_kit.trainer.process.stop import StopSignal
from slurm_job_kit.trainer.process.watcher import Pulse
from slurm_job_kit.trainer.seeds import ORDER, WEIGHTS, mix
from slurm_job_kit.trainer.training import saves
from slurm_job_kit.trainer.training.reporter import Reporter
from slurm_job_kit.trainer.training.run import conclude, prepare
from tests.core.ranks import CPU, context_of, place_of
from tests.core.run_files import write_json
from tests.core.waiting import wait_for

pytestmark = pytest.mark.usefixtures("process_group")

# Five micro batches an epoch: two groups of two and one of one.
TRAIN = Train(
    model="tests.core.test_loop:net",
    dataset="tests.core.test_loop:points",
    objective="classification",
    objective_args={"label_smoothing": 0.2},
    epochs=3,
    micro_batch_size=4,
    grad_accum_steps=2,
    lr=0.5,
    weight_decay=0.1,
)


def net():
    return nn.Linear(3, 2, bias=False)


def points():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(31, 3, generator=generator)
    labels = (inputs[:, 0] > 0).long()
    return Samples(inputs[:21], labels[:21]), Samples(inputs[21:], labels[21:])


def spoilt_points():
    """The points, with a NaN that the second step meets."""
    train, test = points()
    generator = torch.Generator().manual_seed(mix(ORDER, 0, 0))
    train.inputs[torch.randperm(21, generator=generator)[8]] = torch.nan
    return train, test


def train(folder, spec, attempt=1, stop_at=None, hook=None, callbacks=()):
    """Run an attempt of a run; return (run directory, loop). stop_at: the step of a stop."""
    run = RunDir(folder)
    run.attempt(attempt).path.mkdir(parents=True)
    write_json(run.owner, {"attempt": attempt})
    stop = StopSignal()

    class StoppingPulse(Pulse):
        def beat(self, what, step=None):
            stop.requested = step is not None and step == stop_at

    context = context_of(folder, spec, None, attempt, StoppingPulse(), *callbacks)
    loop = prepare(context, callbacks)
    if hook is not None:
        ddp = DistributedDataParallel(loop.replica.module, gradient_as_bucket_view=True)
        ddp.register_comm_hook(None, hook)
        loop.replica = dataclasses.replace(loop.replica, wrapped=ddp)
    try:
        status = loop.run(StepAgreement(stop, 1, CPU))
    except BaseException:
        loop.close()
        raise
    conclude(context, loop, status)
    return run, loop


def by_hand(train, batches):
    """The weights after a training written without the kit."""
    torch.manual_seed(mix(WEIGHTS, train.seed))
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), train.lr, train.momentum, weight_decay=0.1)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.2)
    samples, _ = points()
    for epoch in range(train.epochs):
        order = batches.order(epoch)[:20]
        for group in order.split(8):
            # The mean over the group, however many samples it has.
            loss_of(model(samples.inputs[group]), samples.labels[group]).backward()
            if train.grad_clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), train.grad_clip_norm)
            optimizer.step()
            optimizer.zero_grad()
    return model.weight


@pytest.mark.parametrize("grad_clip_norm", [None, 0.3])
def test_a_training_is_what_it_would_be_without_a_kit(tmp_path, grad_clip_norm):
    spec = Spec(train=dataclasses.replace(TRAIN, grad_clip_norm=grad_clip_norm))
    _, loop = train(tmp_path, spec)
    assert loop.state.global_step == 9
    expected = by_hand(spec.train, Batches.of(spec.train, 21, 1))
    assert torch.allclose(loop.replica.module.weight, expected, rtol=1e-5, atol=1e-6)


def as_it_is(bucket):
    """What a hook returns that exchanges nothing."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def test_ranks_exchange_gradients_once_in_each_optimizer_step(tmp_path):
    exchanges = []

    def count(_, bucket):
        exchanges.append(bucket.index())
        return as_it_is(bucket)

    _, loop = train(tmp_path, Spec(train=TRAIN), hook=count)
    assert exchanges == [0] * loop.state.global_step


def test_the_loss_of_a_window_survives_another_interval_of_the_log(tmp_path):
    """log.every_steps may change at any resume."""
    each, first, later = (Spec(train=TRAIN, log=Log(every_steps=n)) for n in (1, 2, 7))
    run, _ = train(tmp_path / "reference", each)
    losses = [line["train_loss"] for line in read_jsonl(run.metrics) if "train_loss" in line]
    run, loop = train(tmp_path / "run", first, stop_at=3)
    assert loop.state.global_step == 5
    train(tmp_path / "run", later, attempt=2)
    lines = {line["step"]: line for line in read_jsonl(run.metrics) if "train_loss" in line}
    assert list(lines) == [2, 4, 7]
    # The mean over the samples: steps 5, 6 and 7 have 8, 4 and 8.
    mean = (8 * losses[4] + 4 * losses[5] + 8 * losses[6]) / 20
    assert lines[7]["train_loss"] == pytest.approx(mean)


@pytest.mark.parametrize("every_steps", [1, 2, 5, 100])
@pytest.mark.parametrize("stop_at", [None, 3])
def test_a_line_at_the_end_of_an_epoch_has_the_means_over_its_samples(
    tmp_path, capsys, every_steps, stop_at
):
    run, _ = train(tmp_path / "reference", Spec(train=TRAIN, log=Log(every_steps=1)))
    lines = [line for line in read_jsonl(run.metrics) if "train_loss" in line]
    sizes = [8, 8, 4]
    expected = []
    for epoch in range(3):
        steps = lines[3 * epoch : 3 * epoch + 3]
        mean, accuracy = (
            sum(size * step[name] for size, step in zip(sizes, steps, strict=True)) / 20
            for name in ("train_loss", "train_accuracy")
        )
        expected.append((str(epoch + 1), f"{mean:.4g}", f"{100 * accuracy:.2f}"))
    capsys.readouterr()
    spec = Spec(train=TRAIN, log=Log(every_steps=every_steps))
    train(tmp_path / "run", spec, stop_at=stop_at)
    if stop_at is not None:
        train(tmp_path / "run", spec, attempt=2)
    line = r"^epoch (\d)/3 (?:took|ended after) .*  loss (\S+)  accuracy (\S+)%"
    assert re.findall(line, capsys.readouterr().out, re.M) == expected


@pytest.mark.parametrize(
    ("every_steps", "words"),
    [(1, "the last good checkpoint is step-00000001"), (None, "there is no checkpoint yet")],
)
def test_a_loss_that_is_not_finite_names_the_last_good_checkpoint(tmp_path, every_steps, words):
    spoilt = dataclasses.replace(TRAIN, dataset="tests.core.test_loop:spoilt_points")
    keep = Checkpoint(every_steps=every_steps, every_epochs=None)
    spec = Spec(train=spoilt, checkpoint=keep, log=Log(every_steps=1))
    with pytest.raises(NotFinite, match=rf"is nan at step 2: {words}\n  hint: .* for a NaN"):
        train(tmp_path, spec)


class Commits:
    """The steps that are committed, each after `before()`."""

    def __init__(self, monkeypatch):
        self.steps: list[int] = []
        self.before: Callable[[], object] = lambda: None
        self._commit = commit.commit_and_prune
        monkeypatch.setattr(commit, "commit_and_prune", self.save)

    def save(self, root, pending, retention):
        self.before()
        self.steps.append(pending.step)
        return self._commit(root, pending, retention)

    def held_until(self, step):
        """A hook of DDP; saves wait until it exchanges the gradients of a step."""
        is_open, exchanges = threading.Event(), itertools.count(1)
        self.before = lambda: is_open.wait(60)

        def hook(_, bucket):
            if bucket.index() == 0 and next(exchanges) == step:
                is_open.set()
            return as_it_is(bucket)

        return hook


@pytest.fixture
def commits(monkeypatch):
    return Commits(monkeypatch)


def test_a_slow_disk_postpones_periodic_saves_and_not_the_training(
    tmp_path, monkeypatch, capsys, commits
):
    reference, whole = train(tmp_path / "reference", Spec(train=TRAIN))
    syncs, really_sync = [], Reporter.sync

    def sync(reporter):
        syncs.append(1)
        return really_sync(reporter)

    commits.steps.clear()
    monkeypatch.setattr(Reporter, "sync", sync)
    spec = Spec(train=TRAIN, checkpoint=Checkpoint(every_steps=1, best=None))
    run, loop = train(tmp_path / "run", spec, hook=commits.held_until(5))
    assert "the checkpoint of step 2 is postponed: " in capsys.readouterr().out
    assert (commits.steps[0], commits.steps[-1]) == (1, 9) and not {2, 3, 4} & {*commits.steps}
    assert len(syncs) == len(commits.steps)  # of metrics.jsonl, on the same disk
    assert run.metrics.read_bytes() == reference.metrics.read_bytes()
    assert torch.equal(loop.replica.module.weight, whole.replica.module.weight)


def test_a_postponed_save_is_made_as_soon_as_the_disk_is_free(tmp_path, monkeypatch, commits):
    is_saving, opened = Checkpoints.is_saving, commits.held_until(10)
    known: list[Checkpoints] = []

    def note(checkpoints):
        known[:] = [checkpoints]
        return is_saving(checkpoints)

    def hook(state, bucket):
        exchanged = opened(state, bucket)
        if next(exchanges) == 10:
            wait_for(lambda: not is_saving(known[0]))
        return exchanged

    monkeypatch.setattr(Checkpoints, "is_saving", note)
    exchanges = itertools.count(1)
    longer = dataclasses.replace(TRAIN, epochs=6)
    every = Checkpoint(every_steps=4, every_epochs=None, best=None)
    train(tmp_path, Spec(train=longer, checkpoint=every), hook=hook)
    # Due are 4, which stays in flight until step 10, and 8; the ranks agree one step later.
    assert commits.steps[:2] == [4, 11]


def test_a_save_that_is_kept_at_any_age_waits_for_the_disk(tmp_path, commits):
    kept = Checkpoint(every_steps=1, keep_every_steps=3, best=None)
    train(tmp_path, Spec(train=TRAIN, checkpoint=kept), hook=commits.held_until(3))
    assert {3, 6, 9} <= {*commits.steps} and 2 not in commits.steps


@pytest.mark.parametrize(("share", "is_saved"), [(0.0, False), (0.25, True)])
def test_a_stop_that_meets_a_save_saves_its_step_unless_that_save_was_slow(
    tmp_path, monkeypatch, capsys, commits, share, is_saved
):
    every = Spec(train=TRAIN, checkpoint=Checkpoint(every_steps=2, every_epochs=None, best=None))
    is_open = threading.Event()
    commits.before = lambda: is_open.wait(60)
    finish = Checkpoints.finish

    def finish_open(*arguments):
        is_open.set()
        finish(*arguments)

    monkeypatch.setattr(Checkpoints, "finish", finish_open)
    monkeypatch.setattr(saves, "SHARE_OF_LEAD", share)
    run, loop = train(tmp_path, every, stop_at=4)
    stopped = loop.state.global_step
    outcome = read_json(run.attempt(1).outcome)
    assert (outcome["status"], outcome["global_step"]) == ("stopped", stopped) and stopped > 4
    saved = [f"step-{step:08d}" for step in (2, *([stopped] if is_saved else []))]
    assert sorted(path.name for path in run.checkpoints.glob("step-*")) == saved
    assert outcome["checkpoint"] == saved[-1]
    assert (f"no time to save step {stopped}: " in capsys.readouterr().out) != is_saved


def test_the_draws_in_a_pass_differ_by_seed_step_micro_batch_and_rank(tmp_path):
    drawn: list[float] = []
    _, loop = train(tmp_path, Spec(train=TRAIN))
    for seed, rank, step in itertools.product((0, 1), repeat=3):
        loop.train = dataclasses.replace(TRAIN, seed=seed)
        loop.distributed = place_of(rank, 2)
        for _ in loop._micro_batches(step, 2):
            drawn += random.random(), float(torch.rand(1))
    assert len({*drawn}) == len(drawn) == 32


@pytest.mark.parametrize("seconds", [0.0, 3600.0])
def test_by_default_a_checkpoint_is_due_by_the_clock(tmp_path, monkeypatch, commits, seconds):
    monkeypatch.setattr(saves, "LEAST_INTERVAL_S", seconds)
    monkeypatch.setattr(saves, "STALLS", 0)
    train(tmp_path, Spec(train=TRAIN, checkpoint=Checkpoint(best=None)))
    assert commits.steps == [9] if seconds else {*commits.steps} > {9}


def test_a_checkpoint_that_is_to_be_kept_is_also_saved(tmp_path):
    kept = Checkpoint(keep_every_steps=4, keep_every_epochs=2, keep_last=1, best=None)
    run, _ = train(tmp_path, Spec(train=TRAIN, checkpoint=kept))  # an epoch has three steps
    names = sorted(path.name for path in run.checkpoints.glob("step-*"))
    assert names == [f"step-{step:08d}" for step in (4, 6, 8, 9)]


@pytest.mark.parametrize(
    ("checkpoint", "stall_s", "seconds"),
    [
        (Checkpoint(), 0.01, 60),  # auto: a minute, or twenty times the stall of the last save
        (Checkpoint(), 12.0, 240),
        (Checkpoint(every_minutes=2), 12.0, 120),
        (Checkpoint(every_steps=5), 12.0, math.inf),
        (Checkpoint(interval=None), 12.0, math.inf),
    ],
)
def test_the_interval_of_saves(checkpoint, stall_s, seconds):
    assert saves.interval_s(checkpoint, stall_s) == seconds
