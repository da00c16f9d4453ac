"""faults.md row 26: the world size changes between attempts, the sequence of samples does not."""

import re
from collections import defaultdict

import pytest

from slurm_job_kit.jobs.rundir import read_json, read_jsonl
from slurm_job_kit.jobs.spec import Train
from slurm_job_kit.trainer.data.batches import Batches
from slurm_job_kit.trainer.data.feed import TRIAL_SIZE
from tests.local.test_trainer import TINY, make_run, train

GLOBAL_BATCH, SAMPLES = 12, 62
WORLDS = {1: 2, 2: 3, 3: 1}  # by attempt


@pytest.fixture(scope="module")
def resized(tmp_path_factory):
    """(run, folder of the recorded indices) of three attempts in worlds of other sizes."""
    folder = tmp_path_factory.mktemp("recorded")
    spec = TINY | {
        "dataset": "tests.local.test_trainer_plugins:recorded_blobs",
        "dataset_args": {"folder": str(folder)},
        "model_args": {"signal_at": {"1": 6, "2": 13}},
        "global_batch_size": GLOBAL_BATCH,
        "epochs": 3,
    }
    run = make_run(tmp_path_factory.mktemp("resized"), **spec)
    for attempt, ranks in WORLDS.items():
        status, output = train(run, attempt=attempt, ranks=ranks)
        assert status == 0, output
    return run, folder


def micro_batches(folder, attempt, rank):
    """The indices of each batch that a rank trained on.

    Without those of the start: its throw-away pass takes zeros, and the first samples are compared.
    """
    lines = (folder / f"{attempt}-{rank}").read_text().splitlines()
    batches = [[int(word) for word in line.split()] for line in lines]
    return [batch for batch in batches if any(batch) and batch != list(range(TRIAL_SIZE))]


def trained_on(run, folder):
    """The indices of each global step, sorted, over all attempts."""
    seen: dict[int, list[int]] = defaultdict(list)
    events = read_jsonl(run.timeline("rank-00000"))
    firsts = {e["attempt"]: e["step"] for e in events if e["event"] == "loaded"}
    for attempt, world_size in WORLDS.items():
        train = Train(micro_batch_size=4, global_batch_size=GLOBAL_BATCH)
        batches = Batches.of(train, SAMPLES, world_size)
        for rank in range(world_size):
            for index, batch in enumerate(micro_batches(folder, attempt, rank)):
                seen[firsts[attempt] + index // batches.grad_accum_steps] += batch
    return {step: sorted(indices) for step, indices in seen.items()}


@pytest.mark.slow
def test_every_global_batch_has_the_samples_it_would_have_had(resized):
    run, folder = resized
    batches = Batches.of(Train(micro_batch_size=12), SAMPLES, 1)
    assert trained_on(run, folder) == {
        step: sorted(batches.order(step // 5)[step % 5 * 12 :][:12].tolist()) for step in range(15)
    }


@pytest.mark.slow
def test_a_resized_run_says_that_its_samples_are_the_same_and_why(resized):
    result = read_json(resized[0].attempt(max(WORLDS)).outcome)
    assert (result["status"], result["global_step"]) == ("completed", 15)
    assert result["exactness"] == "same samples"
    words = r"world size was 2, then 3 after step \d+, then 1 after step \d+"
    assert re.fullmatch(words, result["exactness_reason"]), result
