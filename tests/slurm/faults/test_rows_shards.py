"""Faults of runs that divide model or optimizer between the ranks (rows 16, 18, 21).

Each rank writes a file of a checkpoint, and rank 0 commits when all have done that.
"""

import signal
from pathlib import Path

import pytest

from ..kit import Run
from . import harm_nodes, harm_processes, harm_slurm, harm_storage, oracles
from .rows import Row
from .test_rows_storage import step_of

pytestmark = pytest.mark.plugin("sharded", "changes")
FSDP = "train.strategy=fsdp"
# Two nodes have a copy each, of a shard per rank.
HSDP = ("train.strategy=hsdp", "slurm.nodes=2", "launch.nproc_per_node=2")
SHARDS = tuple(f"rank-{rank:05}.safetensors" for rank in range(3))
OFTEN = ("checkpoint.every_steps=5", "launch.hang_timeout_s=10")


def hold_a_save(run: Run, attempt: int, disk: Path, name: str) -> None:
    """Wait for a checkpoint of an attempt, then hold its next save at this file.

    On return all files that are written before or beside that one are complete.
    """
    run.wait_for_events("save", 1, attempt)
    done = run.dir.checkpoints / harm_storage.committed(run.dir)[0]
    sizes = {file.name: file.stat().st_size for file in done.glob("rank-*.safetensors")}
    disk.write_text(name)

    def is_held() -> bool:
        drafts = list(run.dir.checkpoints.glob(f".tmp-step-*-attempt-{attempt}"))
        return any(
            (draft / name).exists()
            and all((draft / file).exists() for file in sizes)
            and all((draft / file).stat().st_size == sizes[file] for file in sizes if file != name)
            for draft in drafts
        )

    run.wait_for(is_held, f"a save of attempt {attempt} at {name}")


def test_row_16_a_rank_or_node_is_lost_in_a_save(row: Row, disk: Path) -> None:
    """Rank 1 dies while it writes its shard, rank 0 in the commit, the node of rank 2 before it."""
    paced = row.start(FSDP, *OFTEN, f"launch.env.DISK_FILE={disk}")
    run = paced.run
    for attempt, (number, file) in enumerate([(1, SHARDS[1]), (0, "state.json")], start=1):
        hold_a_save(run, attempt, disk, file)
        harm_processes.send([harm_processes.rank(run, number)], signal.SIGKILL)
        disk.unlink()
    hold_a_save(run, 3, disk, SHARDS[1])
    lost = harm_nodes.lose_power(run, 2)
    disk.unlink()
    harm_slurm.wait_for_restarts(run, 1)
    paced.finish()
    oracles.ended(run, row.reference(FSDP), ["crash", "crash", "node", "completed"], 1)
    oracles.at_most_one_interval(run)
    assert lost not in run.attempts()[-1]["nodes"]
    for before, after in zip(run.attempts(), run.attempts()[1:], strict=False):
        assert run.loaded(after["attempt"]) == {step_of(before["checkpoint"])}


def test_row_18_a_node_loses_its_network_in_a_save(row: Row, disk: Path) -> None:
    """First the node of a copy, then that of the ranks which write: their shards are complete."""
    paced = row.start(*HSDP, *OFTEN, f"launch.env.DISK_FILE={disk}")
    run = paced.run
    for attempt, index in enumerate([1, 0], start=1):
        hold_a_save(run, attempt, disk, SHARDS[1])
        newest = step_of(harm_storage.committed(run.dir)[0])
        lost = harm_nodes.cut_off(run, index)
        disk.unlink()
        harm_slurm.wait_for_restarts(run, attempt)
        run.wait_for_events("save", 1, attempt + 1)
        assert run.loaded(attempt + 1) == {newest}
        assert lost not in harm_nodes.nodes_of(run)
    paced.finish()
    oracles.bitwise(run, row.reference(*HSDP))
    oracles.at_most_one_interval(run)
    oracles.causes(run, ["node", "node", "completed"])
    oracles.requeues(run, 2)
