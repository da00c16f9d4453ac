"""The pure parts of the trainer: order of the samples, splits, digest, exactness."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from slurm_job_kit.jobs.rundir import RunDir, read_jsonl
from slurm_job_kit.jobs.spec import Spec, Train
from slurm_job_kit.trainer import api
from slurm_job_kit.trainer.checkpoint.digest import tensors_sha256
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.events import Events
from slurm_job_kit.trainer.logging.reproducibility import describe, exactness, extend_history
from slurm_job_kit.trainer.process.context import DistributedContext
from slurm_job_kit.trainer.seeds import mix
from tests.core.ranks import context_of, place_of

REPOSITORY = Path(__file__).resolve().parents[2]


def test_seeds_differ_in_every_part():
    seeds = {mix(kind, 0, step, rank) for kind in (1, 2) for step in range(50) for rank in range(4)}
    assert len(seeds) == 400 and all(0 <= seed < 2**63 for seed in seeds)
    assert mix(1, 2) != mix(2, 1)


def test_the_digest_changes_with_any_bit_of_a_parameter_or_buffer():
    linear, norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
    model = nn.Sequential(linear, norm)
    digest = tensors_sha256(model.state_dict())
    assert digest == tensors_sha256(model.state_dict()) and len(digest) == 64
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked += 1
    changed = tensors_sha256(model.state_dict())
    assert changed != digest
    with torch.no_grad():
        linear.weight.view(-1).view(torch.int32)[4] ^= 1
    assert tensors_sha256(model.state_dict()) not in (digest, changed)


def test_the_digest_knows_zero_from_minus_zero_and_shapes():
    def digest(tensor):
        module = nn.Module()
        module.register_buffer("x", tensor)
        return tensors_sha256(module.state_dict())

    values = [torch.zeros(4), -torch.zeros(4), torch.zeros(2, 2), torch.zeros(8).half()]
    assert len({digest(value) for value in values}) == 4


def test_exactness_names_what_changed():
    first = {"torch": "2.13", "world size": 3, "ranks": [1, 1, 1]}
    assert exactness(extend_history([first], dict(first)), True)[0] == "bitwise"
    assert exactness([first], False)[0] == "same samples"
    other = extend_history([first], {**first, "torch": "2.14"})
    assert exactness(other, True) == ("same samples", "torch was 2.13, then 2.14 after step 0")
    for key in ("train.seed", "train.dataset_args", "train.collate"):
        exact, reason = exactness(extend_history([first], {**first, key: 1}), True)
        assert exact == "approximate" and reason.startswith(f"{key} changed")
    moved = extend_history([first], {**first, "ranks": [1, 2, 1]})
    assert exactness(moved, True)[0] == "same samples"


def test_an_environment_has_the_size_of_the_shard_groups_of_nodes_of_another_size(tmp_path):
    def found(local_world_size, **train):
        place = place_of(0, 4, local_world_size)
        return describe(context_of(tmp_path, Spec(train=Train(**train)), place))

    history = extend_history([found(2, strategy="hsdp")], found(4, strategy="hsdp"), 7)
    assert exactness(history, True) == (
        "same samples",
        "train.shard_size was 2, then 4 after step 7",
    )
    assert found(2, strategy="hsdp") == found(2, strategy="hsdp", shard_size=2)
    assert found(2, strategy="fsdp") == found(4, strategy="fsdp")


def test_variables_that_change_bits_are_a_part_of_the_environment(tmp_path, monkeypatch):
    context = context_of(tmp_path, Spec())
    first = describe(context)
    monkeypatch.setenv("NCCL_DEBUG", "INFO")  # it only prints
    monkeypatch.setenv("CUBLASLT_LOG_FILE", "/tmp/job-7.log")
    assert describe(context) == first
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    history = extend_history([first], describe(context), 7)
    words = "MKL_CBWR was null, then COMPATIBLE after step 7"
    assert exactness(history, True) == ("same samples", words)


def test_exactness_names_the_steps_at_which_the_code_changed():
    first = {"code": "a", "torch": "2.13", "ranks": [1]}
    history = extend_history([], first, 0)
    history = extend_history(history, {**first, "code": "b"}, 1200)
    assert exactness(history, True) == ("same samples", "the code changed after step 1200")
    assert extend_history(history, {**first, "code": "b"}, 1300) == history
    history = extend_history(history, {**first, "code": "c", "torch": "2.14"}, 1500)
    history = extend_history(history, {**first, "torch": "2.14"}, 1600)  # it comes back
    words = "the code changed after step 1200 and 1500 and 1600"
    torch_words = "torch was 2.13, then 2.14 after step 1500"
    assert exactness(history, True) == ("same samples", f"{words}; {torch_words}")


def test_exactness_names_each_change_of_the_world_size_with_its_step():
    history: list[dict[str, Any]] = []
    for step, size in {0: 8, 60: 8, 120: 7, 200: 7, 300: 8}.items():
        torch_version = "2.14" if size == 7 else "2.13"
        now = {"torch": torch_version, "world size": size, "ranks": [1] * size}
        history = extend_history(history, now, step)
    words = "world size was 8, then 7 after step 120, then 8 after step 300"
    torch_words = "torch was 2.13, then 2.14 after step 120, then 2.13 after step 300"
    assert exactness(history, True) == ("same samples", f"{words}; {torch_words}")
    assert exactness(history, False)[1].endswith(f"; {words}")
    assert extend_history(history, now, 400) == history


def test_the_context_comes_from_torchruns_variables():
    values = {"RANK": "2", "LOCAL_RANK": "2", "GROUP_RANK": "0"}
    context = DistributedContext.from_env(values | {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"})
    assert (context.rank, context.local_rank, context.world_size) == (2, 2, 4)
    assert not context.is_first
    with pytest.raises(UserError, match="RANK, LOCAL_RANK, .* not set: start it with torchrun"):
        DistributedContext.from_env({})


def test_events_before_the_run_directory_is_known_are_kept(tmp_path):
    events = Events(rank=2)
    events.event("start", t=12.5)
    events.open(RunDir(tmp_path / "elsewhere"), attempt=1)
    events.event("init")
    events.open(RunDir(tmp_path), attempt=1)
    records = read_jsonl(tmp_path / "timeline" / "rank-00002.jsonl")
    assert [(record["event"], record["attempt"]) for record in records] == [
        ("start", 1),
        ("init", 1),
    ]
    assert records[0]["t"] == 12.5


def test_examples_and_readmes_show_only_the_api_of_the_trainer():
    shown = set()
    for name in ("README.md", "configs/README.md"):
        text = (REPOSITORY / name).read_text(encoding="utf-8")
        shown |= set(re.findall(r"trainer\.(\w+\.\w+)", text))
    for path in (REPOSITORY / "configs").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            own = "slurm_job_kit.trainer."
            shown |= {name.removeprefix(own) for name in names if "trainer" in name}
    assert shown == {f"api.{name}" for name in api.__all__}
