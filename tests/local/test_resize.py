"""faults.md row 26: the world size changes between attempts, the sequence of samples does not."""

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest

from slurm_job_kit.jobs.rundir import RunDir, read_json, read_jsonl
from slurm_job_kit.jobs.spec import Train
from slurm_job_kit.trainer.data.batches import Batches
from slurm_job_kit.trainer.data.feed import TRIAL_SIZE
from tests.local.test_trainer import TINY, make_run, train

SAMPLES, STEPS_PER_EPOCH = 62, 5
# By name: the global batch, and the number of ranks by attempt.
SHARES = {"even": (12, {1: 2, 2: 3, 3: 1}), "uneven": (11, {1: 3, 2: 2, 3: 3})}


class Resized(NamedTuple):
    """A run of three attempts in worlds of other sizes, and the folder of its recorded indices."""

    run: RunDir
    folder: Path
    global_batch: int
    worlds: dict[int, int]


@pytest.fixture(scope="module", params=SHARES)
def resized(request, tmp_path_factory):
    global_batch, worlds = SHARES[request.param]
    folder = tmp_path_factory.mktemp("recorded")
    spec = TINY | {
        "dataset": "tests.local.test_trainer_plugins:recorded_blobs",
        "dataset_args": {"folder": str(folder)},
        "model_args": {"signal_at": {"1": 6, "2": 13}},
        "global_batch_size": global_batch,
        "epochs": 3,
    }
    run = make_run(tmp_path_factory.mktemp("resized"), **spec)
    for attempt, ranks in worlds.items():
        status, output = train(run, attempt=attempt, ranks=ranks)
        assert status == 0, output
    return Resized(run, folder, global_batch, worlds)


def micro_batches(folder, attempt, rank):
    """The indices of each batch that a rank trained on.

    Without those of the start: its throw-away pass takes zeros, and the first samples are compared.
    """
    lines = (folder / f"{attempt}-{rank}").read_text().splitlines()
    batches = [[int(word) for word in line.split()] for line in lines]
    return [batch for batch in batches if any(batch) and batch != list(range(TRIAL_SIZE))]


def loaded_steps(run):
    """The step at which each attempt went on, by attempt."""
    events = read_jsonl(run.timeline("rank-00000"))
    return {e["attempt"]: e["step"] for e in events if e["event"] == "loaded"}


def trained_on(resized):
    """The indices of each global step, sorted, over all attempts."""
    seen: dict[int, list[int]] = defaultdict(list)
    firsts = loaded_steps(resized.run)
    for attempt, world_size in resized.worlds.items():
        train = Train(micro_batch_size=4, global_batch_size=resized.global_batch)
        batches = Batches.of(train, SAMPLES, world_size)
        for rank in range(world_size):
            for index, batch in enumerate(micro_batches(resized.folder, attempt, rank)):
                seen[firsts[attempt] + index // batches.grad_accum_steps] += batch
    return {step: sorted(indices) for step, indices in seen.items()}


@pytest.mark.slow
def test_every_global_batch_has_the_samples_it_would_have_had(resized):
    size, per_epoch = resized.global_batch, STEPS_PER_EPOCH
    batches = Batches.of(Train(micro_batch_size=size), SAMPLES, 1)
    assert trained_on(resized) == {
        step: sorted(batches.order(step // per_epoch)[step % per_epoch * size :][:size].tolist())
        for step in range(3 * per_epoch)
    }


@pytest.mark.slow
def test_a_resized_run_says_that_its_samples_are_the_same_and_why(resized):
    result = read_json(resized.run.attempt(max(resized.worlds)).outcome)
    assert (result["status"], result["global_step"]) == ("completed", 15)
    assert result["exactness"] == "same samples"
    first, second, third = resized.worlds.values()
    steps = loaded_steps(resized.run)
    assert 0 < steps[2] < steps[3] < 15
    assert result["exactness_reason"] == (
        f"world size was {first}, then {second} after step {steps[2]}, "
        f"then {third} after step {steps[3]}"
    )
