"""The layout of tensors in the files of a checkpoint."""

import torch

from slurm_job_kit.trainer.checkpoint import outline
from slurm_job_kit.trainer.storage import commit, reader
from slurm_job_kit.trainer.storage.commit import PendingCheckpoint
from slurm_job_kit.trainer.storage.manifest import Manifest
from slurm_job_kit.trainer.strategy.sharding import Sharding


def test_rows_in_another_memory_format_are_read(tmp_path):
    """Such as the moments of a convolution in channels_last."""
    values = torch.arange(2 * 6 * 4 * 3 * 3, dtype=torch.float32).view(2 * 6, 4, 3, 3)
    stored = outline.lay_out({"x": values}, Sharding(1, 0))
    manifest = Manifest(3, attempt=1, files=())
    files = {
        "rank-00000.bin": lambda sink: outline.write_part({"x": values}, stored, 0, sink),
    }
    commit.commit(tmp_path, PendingCheckpoint(manifest, files, lambda: None))
    rows = torch.empty(5, 4, 3, 3).to(memory_format=torch.channels_last)
    with reader.Contents.open(tmp_path / "step-00000003") as contents:
        stored[0].read_into(contents, 6 * 4 * 3 * 3, rows)
    assert torch.equal(rows, values[6:11])
