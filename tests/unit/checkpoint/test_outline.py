"""state.json names the place of each tensor, in few words however many ranks there are."""

import functools
import json
import math
from typing import Any

import pytest
import torch

from slurm_job_kit.jobs.checkpoint.manifest import Manifest
from slurm_job_kit.jobs.checkpoint.part_file import part_name
from slurm_job_kit.jobs.checkpoint.reader import Contents
from slurm_job_kit.trainer.checkpoint import outline
from slurm_job_kit.trainer.checkpoint.commit import PendingCheckpoint, commit
from slurm_job_kit.trainer.strategy.sharding import Rows, Sharding

SHAPES = [(64, 3), (1,), (65,), (130, 2), (63, 5), (7, 2, 2), (0, 3), (200,)]


def wholes():
    return [torch.arange(math.prod(shape), dtype=torch.float32).view(shape) for shape in SHAPES]


def tree_of(sharding):
    """Divided tensors, and between them two that rank 0 writes."""
    rows = [Rows(each[slice(*sharding.rows(len(each)))], each.shape) for each in wholes()]
    return {"rows": rows[:4], "one": torch.tensor(7.0), "more": rows[4:], "two": torch.ones(33)}


def saved(folder, num_ranks, change=lambda values: values):
    files: dict[str, Any] = {}
    for rank in range(num_ranks):
        sharding = Sharding(num_ranks, rank)
        tree = tree_of(sharding)
        stored = outline.lay_out(tree, sharding)
        files[part_name(rank)] = functools.partial(outline.write_part, tree, stored, rank)
    text = json.dumps(change(json.loads(outline.to_json(tree, stored)))).encode()
    files[outline.STATE] = lambda sink: sink.write(text)
    commit(folder, PendingCheckpoint(Manifest(3, attempt=1, files=()), files, lambda: None))
    return folder / "step-00000003"


def entry_per_rank(values):
    """As a kit wrote it that had an entry for each rank."""
    for tensor in values["tensors"]:
        tensor["pieces"] = [
            [rank + index, offset, first + index * size, size]
            for rank, offset, first, size, count in tensor["pieces"]
            for index in range(count)
        ]
    return values


@pytest.mark.parametrize("change", [lambda values: values, entry_per_rank])
@pytest.mark.parametrize("num_ranks", [1, 3, 64])
def test_what_many_ranks_wrote_is_read_whole_and_in_parts(tmp_path, num_ranks, change):
    with Contents.open(saved(tmp_path, num_ranks, change)) as contents:
        state = outline.from_json(contents.file(outline.STATE).read())
        read = [each.read(contents) for each in (*state["rows"], *state["more"])]
        assert all(torch.equal(one, other) for one, other in zip(read, wholes(), strict=True))
        assert (state["one"].read(contents), state["two"].read(contents).sum()) == (7, 33)
        for first, size in ((0, 1), (1, 9), (100, 160), (259, 1)):
            part = torch.empty(size)
            state["rows"][3].read_into(contents, first, part)
            assert torch.equal(part, torch.arange(first, first + size, dtype=torch.float32))


def test_the_places_take_no_more_room_with_more_ranks():
    sizes = {}
    for num_ranks in (8, 512):
        rows = [Rows(torch.empty(0), (4096, 4)), Rows(torch.empty(0), (513,))] * 100
        stored = outline.lay_out(rows, Sharding(num_ranks, 0))
        sizes[num_ranks] = len(outline.to_json({"rows": rows}, stored))
    assert sizes[512] < 1.5 * sizes[8]


def test_rows_in_another_memory_format_are_read(tmp_path):
    """Such as the moments of a convolution in channels_last."""
    values = torch.arange(2 * 6 * 4 * 3 * 3, dtype=torch.float32).view(2 * 6, 4, 3, 3)
    stored = outline.lay_out({"x": values}, Sharding(1, 0))
    manifest = Manifest(3, attempt=1, files=())
    files = {
        "rank-00000.bin": lambda sink: outline.write_part({"x": values}, stored, 0, sink),
    }
    commit(tmp_path, PendingCheckpoint(manifest, files, lambda: None))
    rows = torch.empty(5, 4, 3, 3).to(memory_format=torch.channels_last)
    with Contents.open(tmp_path / "step-00000003") as contents:
        stored[0].read_into(contents, 6 * 4 * 3 * 3, rows)
    assert torch.equal(rows, values[6:11])
