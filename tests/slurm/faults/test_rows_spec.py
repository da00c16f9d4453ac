"""Changes between two attempts: nodes, data workers, config and code (rows 26 to 28)."""

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_job_kit.jobs.contract.spec import Train
from slurm_job_kit.jobs.plugins import PLUGINS
from slurm_job_kit.trainer.data.batches import Batches
from tests.checkout import copy_checkout

from ..kit import PACED, Run
from . import data, harm_slurm, harm_storage, oracles
from .rows import Row
from .scenario import STEPS_PER_EPOCH

GLOBAL_BATCH, NUM_SAMPLES = 48, 1437
UNEVEN_BATCH = 47  # that two or three ranks cannot share evenly


def trained_on(
    run: Run, folder: Path, nodes_by_attempt: Sequence[int], size: int = GLOBAL_BATCH
) -> dict[int, list[int]]:
    """The samples of each global step, sorted, over all ranks and the last attempts.

    nodes_by_attempt: of these attempts; all before them were cut off. size: of a step.
    """
    attempts = run.attempts()[-len(nodes_by_attempt) :]
    steps_of: dict[int, list[int]] = defaultdict(list)  # rank -> the step of each of its batches
    for attempt, nodes in zip(attempts, nodes_by_attempt, strict=True):
        train = Train(micro_batch_size=16, global_batch_size=size)
        batches = Batches.of(train, NUM_SAMPLES, nodes)
        for step in range(attempt["first_step"] - 1, attempt["last_step"]):
            for rank in range(nodes):
                steps_of[rank] += [step] * batches.num_micro_batches(step)
    seen: dict[int, list[int]] = defaultdict(list)
    is_cut = len(attempts) < len(run.attempts())
    for rank, steps in steps_of.items():
        batches_of_rank = data.batches(folder, rank)
        for step, indices in zip(steps, batches_of_rank[-len(steps) :], strict=True):
            seen[step] += indices
        assert is_cut or len(batches_of_rank) == len(steps), rank
    return {step: sorted(indices) for step, indices in seen.items()}


def expected_samples(size: int = GLOBAL_BATCH) -> dict[int, list[int]]:
    """The samples of each global step, sorted, of a run on one node; size: of a step."""
    batches = Batches.of(Train(micro_batch_size=size), NUM_SAMPLES, 1)
    per_epoch = NUM_SAMPLES // size
    return {
        step: sorted(batches.micro_batches(batches.order(step // per_epoch), step, 0)[0].tolist())
        for step in range(2 * per_epoch)
    }


@pytest.mark.plugin("changes")
@pytest.mark.parametrize(
    ("strategy", "changes", "nodes", "words"),
    [
        (
            *("ddp", ("slurm.nodes=3", "slurm.nodes=1"), (2, 3, 1)),
            r"world size was 2, then 3 after step \d+, then 1 after step \d+",
        ),
        pytest.param(
            *("fsdp", ("slurm.nodes=2", "train.strategy=ddp"), (3, 2, 2)),
            r"world size was 3, then 2 after step \d+; train.strategy was fsdp, then ddp after .*",
            marks=pytest.mark.plugin("sharded"),
        ),
    ],
    ids=["ddp", "fsdp"],
)
def test_row_26_other_world_size_or_strategy_on_resume(
    row: Row, strategy: str, changes: Sequence[str], nodes: Sequence[int], words: str
) -> None:
    folder = row.kit.runs_root / "samples"
    folder.mkdir()
    paced = row.start(
        *(f"train.strategy={strategy}", f"slurm.nodes={nodes[0]}"),
        f"train.global_batch_size={GLOBAL_BATCH}",
        *(data.RECORDED, f"launch.env.{data.FOLDER}={folder}"),
    )
    for step, change in zip((2, STEPS_PER_EPOCH - 2), changes, strict=True):
        paced.run.wait_for_step(step)
        harm_storage.stop(paced.run)
        told = row.kit.jobs("resume", paced.run.dir.path, change, check=False)
        assert told.returncode == 2 and "hint: repeat it with" in told.stderr, told
        paced = replace(paced, run=row.kit.resume(paced.run, change, "--yes"))
    paced.finish()

    assert trained_on(paced.run, folder, nodes) == expected_samples()
    oracles.no_step_redone(paced.run)
    oracles.closed(paced.run, ["time_limit", "time_limit", "completed"])
    result = paced.run.result()
    if "describe" in PLUGINS:
        assert result["exactness"] == "same samples"
        assert re.fullmatch(words, result["exactness_reason"]), result


@pytest.mark.plugin("samples", "changes")
def test_row_27_other_number_of_data_workers(row: Row) -> None:
    paced = row.begin(data.BY_SAMPLE, "launch.num_workers=0", step=3)
    harm_storage.stop(paced.run)
    paced = replace(paced, run=row.kit.resume(paced.run, "launch.num_workers=2"))
    paced.finish()
    oracles.ended(paced.run, row.reference(data.BY_SAMPLE), ["time_limit", "completed"])
    oracles.no_step_redone(paced.run)


@pytest.mark.plugin("changes")
def test_row_28_config_and_code_change_between_attempts(row: Row, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    copy_checkout(checkout)
    row.kit = kit = replace(row.kit, repository=checkout, runs_root=tmp_path / "runs")
    paced = row.begin()
    run = paced.run
    config = checkout / PACED
    text = config.read_text()
    config.write_text(text.replace("lr: 0.05", "lr: 5.0"))
    assert config.read_text() != text
    (checkout / "trainer/model/optim.py").write_text("raise RuntimeError('not the frozen code')\n")
    harm_slurm.preempt(run)  # the same job again
    run.wait_for_events("loaded", attempt=2)
    harm_storage.stop(run)

    frozen = run.dir.spec.read_bytes()
    refused = kit.jobs("resume", run.dir.path, "train.lr=5.0", "slurm.time=00:20:00", check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "train.lr: 0.05 -> 5.0\n" in refused.stderr and "hint: repeat it with" in refused.stderr
    assert run.dir.spec.read_bytes() == frozen
    resumed = kit.resume(run, "slurm.time=00:20:00")  # another job
    assert json.loads(run.dir.spec.read_text())["slurm"]["time"] == "00:20:00"
    paced = replace(paced, run=resumed)
    paced.finish()
    oracles.ended(paced.run, row.reference(), ["preemption", "time_limit", "completed"])
    oracles.no_step_redone(paced.run)
