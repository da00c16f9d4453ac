"""Each rank's file is a safetensors file; state.json names the tensors."""

import functools
import math
from typing import Any, NamedTuple

import pytest
import torch
from safetensors import safe_open

from slurm_job_kit.jobs.contract.checkpoint.manifest import Manifest
from slurm_job_kit.jobs.contract.checkpoint.part_file import part_name
from slurm_job_kit.jobs.contract.checkpoint.reader import Contents
from slurm_job_kit.trainer.checkpoint import outline
from slurm_job_kit.trainer.checkpoint.commit import PendingCheckpoint, commit
from slurm_job_kit.trainer.strategy.interface import Rows, Sharding

SHAPES = [(64, 3), (1,), (65,), (130, 2), (63, 5), (7, 2, 2), (0, 3), (200,)]


def wholes():
    return [torch.arange(math.prod(shape), dtype=torch.float32).view(shape) for shape in SHAPES]


def tree_of(sharding):
    """Divided tensors, and between them two that rank 0 writes."""
    rows = [Rows(each[slice(*sharding.rows(len(each)))], each.shape) for each in wholes()]
    return {"rows": rows[:4], "one": torch.tensor(7.0), "more": rows[4:], "two": torch.ones(33)}


def saved(folder, num_ranks, tree_of=tree_of):
    files: dict[str, Any] = {}
    for rank in range(num_ranks):
        sharding = Sharding(num_ranks, rank)
        tree = tree_of(sharding)
        files[part_name(rank)] = functools.partial(outline.write_part, tree, sharding)
    files[outline.STATE] = outline.to_json(tree, sharding)
    commit(folder, PendingCheckpoint(Manifest(3, attempt=1, files={}), files, lambda: None))
    return folder / "step-00000003"


@pytest.mark.parametrize("num_ranks", [1, 3, 64])
def test_what_many_ranks_wrote_is_read_whole_and_in_parts(tmp_path, num_ranks):
    contents = Contents.open(saved(tmp_path, num_ranks))
    state = outline.whole(outline.read(contents), contents)
    read = (*state["rows"], *state["more"])
    assert all(torch.equal(one, other) for one, other in zip(read, wholes(), strict=True))
    assert (state["one"], state["two"].sum()) == (7, 33)


@pytest.mark.parametrize("num_ranks", [1, 3, 64])
def test_safetensors_opens_the_file_of_each_rank(tmp_path, num_ranks):
    directory = saved(tmp_path, num_ranks)
    for rank in range(num_ranks):
        tree = tree_of(Sharding(num_ranks, rank))
        rows = zip(("rows", "more"), (tree["rows"], tree["more"]), strict=True)
        expected = {
            f"{name}/{index}": each.local
            for name, several in rows
            for index, each in enumerate(several)
        }
        if rank == 0:
            expected |= {"one": tree["one"], "two": tree["two"]}
        with safe_open(directory / part_name(rank), "pt") as file:
            assert {*file.keys()} == {*expected}
            for name, tensor in expected.items():
                assert torch.equal(file.get_tensor(name), tensor)


@pytest.mark.filterwarnings("ignore:Casting complex")
def test_every_type_comes_back_and_is_seen_by_safetensors_where_it_has_it(tmp_path):
    names = ("float64", "bfloat16", "bool", "int64", "uint8", "float8_e4m3fn", "complex128")
    tree = {name: torch.arange(5).view(5, 1).to(getattr(torch, name)) for name in names}
    tree |= {"float4_e2m1fn_x2": torch.ones(3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)}
    directory = saved(tmp_path, 1, lambda sharding: {"values": tree})
    contents = Contents.open(directory)
    found = outline.whole(outline.read(contents)["values"], contents)
    with safe_open(directory / part_name(0), "pt") as file:
        for name, tensor in tree.items():
            seen = file.get_tensor(f"values/{name}")
            for other in (found[name], seen.flatten().view(tensor.dtype).view(tensor.shape)):
                assert other.dtype == tensor.dtype and other.shape == tensor.shape
                assert torch.equal(other.view(torch.uint8), tensor.view(torch.uint8))
            assert (seen.dtype == tensor.dtype) == (name not in ("complex128", "float4_e2m1fn_x2"))


def test_tensors_whose_names_would_be_equal_stay_apart(tmp_path):
    tree = {"a": {1: torch.ones(2), "1": torch.zeros(2)}, "a/1": (torch.arange(3), None)}
    contents = Contents.open(saved(tmp_path, 1, lambda sharding: tree))
    found = outline.whole(outline.read(contents), contents)
    assert (found["a"][1].tolist(), found["a"]["1"].tolist()) == ([1, 1], [0, 0])
    assert (found["a/1"][0].tolist(), found["a/1"][1]) == ([0, 1, 2], None)


def test_state_json_takes_no_more_room_with_more_ranks():
    sizes = {}
    for num_ranks in (8, 512):
        rows = [Rows(torch.empty(0), (4096, 4)), Rows(torch.empty(0), (513,))] * 100
        sizes[num_ranks] = len(outline.to_json({"rows": rows}, Sharding(num_ranks, 0)))
    assert sizes[512] < 1.5 * sizes[8]


def test_a_named_tuple_of_an_optimizer_is_saved_as_a_tuple():
    class Pair(NamedTuple):
        first: int
        second: list[int]

    assert outline.map_values({"state": Pair(1, [2])}, lambda each: -each) == {"state": (-1, [-2])}
