"""A rank waits for the parts of a save and beats meanwhile; it reads rows of any memory format."""

import threading

import pytest
import torch

from slurm_job_kit.jobs.contract.checkpoint.names import checkpoint_names
from slurm_job_kit.jobs.contract.checkpoint.reader import Contents
from slurm_job_kit.trainer.checkpoint import checkpoints, commit, outline
from slurm_job_kit.trainer.plugins.sharded import checkpoints as divided
from slurm_job_kit.trainer.strategy.interface import Sharding
from tests.core.checkpoint.checkpoint_kit import BATCHES, job_of, replica_of, state_at
from tests.core.checkpoint.test_outline import saved


@pytest.mark.usefixtures("process_group")
def test_a_rank_that_waits_for_a_divided_save_beats(tmp_path, monkeypatch):
    gate, really, beats = threading.Event(), commit.write_file, []
    monkeypatch.setattr(commit, "write_file", lambda *each: gate.wait(20) and really(*each))
    monkeypatch.setattr(checkpoints, "POLL_S", 0.01)
    context, replica = job_of(tmp_path), replica_of()
    replica.strategy.sharding = Sharding(2, 0)
    own = divided.DividedCheckpoints(context, BATCHES)
    own.save(replica, state_at(6))

    def beat():
        beats.append(checkpoint_names(context.run.dir.checkpoints))
        if len(beats) == 5:
            gate.set()

    own.finish(beat)
    assert beats[:5] == [[]] * 5
    assert checkpoint_names(context.run.dir.checkpoints) == ["step-00000006"]


def test_rows_in_another_memory_format_are_read(tmp_path):
    """Such as the moments of a convolution in channels_last."""
    values = torch.arange(2 * 6 * 4 * 3 * 3, dtype=torch.float32).view(2 * 6, 4, 3, 3)
    directory = saved(tmp_path, 1, lambda sharding: {"x": values})
    rows = torch.empty(5, 4, 3, 3).to(memory_format=torch.channels_last)
    contents = Contents.open(directory)
    parts = [*divided.parts_of(outline.read(contents)["x"], 6 * 4 * 3 * 3, rows)]
    outline.read_parts(parts, contents, contents.part_names)
    assert torch.equal(rows, values[6:11])
