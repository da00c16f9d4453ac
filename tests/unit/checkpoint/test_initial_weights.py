"""A new run begins with weights from files, at any number of ranks under any strategy."""

import json
import traceback
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
from torch import nn

from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.spec import Spec, Train
from slurm_job_kit.trainer.checkpoint import export, weights
from slurm_job_kit.trainer.checkpoint.digest import tensors_sha256, weights_sha256
from slurm_job_kit.trainer.checkpoint.share import share
from slurm_job_kit.trainer.dist.context import DistributedContext
from slurm_job_kit.trainer.dist.run_handle import RankContext, RunHandle
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.events import Events
from slurm_job_kit.trainer.model.gpt import GPT
from slurm_job_kit.trainer.strategy import create
from tests.unit import forked_ranks
from tests.unit.checkpoint.checkpoint_kit import job_of, loaded, replica_of, save

pytestmark = pytest.mark.usefixtures("process_group")

CPU = torch.device("cpu")
RANKS = 3
STRATEGIES = ("ddp", "zero1", "fsdp")
BUCKET_BYTES = 100
LARGEST, MODEL_BYTES = 140, 352  # 0.weight, and all


def net(width=7):
    """Rows that three ranks divide into 3, 3 and 1, and into 1, 1 and none."""
    return nn.Sequential(nn.Linear(5, width), nn.BatchNorm1d(width), nn.Linear(width, 2))


def filled_net():
    torch.manual_seed(7)
    module = net()
    module(torch.randn(4, 5))  # the buffers are not as in a new model
    return module


def replica_under(strategy, context, width=7):
    torch.manual_seed(100 + context.distributed.rank)
    module = net(width)
    train = Train(strategy=strategy, shard_modules=["Linear"] if strategy == "fsdp" else [])
    made = create(train, context.distributed, CPU)
    wrapped = made.wrap(module)
    made.trained(module)
    replica: Any = SimpleNamespace(module=module, wrapped=wrapped, strategy=made)
    return replica


def load(replica, path, context):
    """The digest after a load, and how many bytes this rank held beside the model at most."""
    held: list[Any] = []
    most = [0]

    def counted(value, device):
        found = share(value, device)
        if isinstance(found, dict) and any(isinstance(v, torch.Tensor) for v in found.values()):
            held.extend(weakref.ref(each) for each in found.values())
            alive = [each() for each in held]
            most[0] = max(most[0], sum(each.nbytes for each in alive if each is not None))
        return found

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(weights, "share", counted)
        monkeypatch.setattr(weights, "BUCKET_BYTES", BUCKET_BYTES)
        weights.load_initial(replica, str(path), context)
    return weights_sha256(replica), most[0]


def refused(context, strategy, path):
    """The error where the files are of another model, and whether the weights stay."""
    replica = replica_under(strategy, context, width=8)
    before = weights_sha256(replica)
    try:
        weights.load_initial(replica, str(path), context)
    except UserError as error:
        return str(error), weights_sha256(replica) == before
    return "", False


def rank_main(rank, folder):
    torch.set_num_threads(1)
    found: dict[Any, Any] = {}
    try:
        store = dist.FileStore(f"{folder}/store", RANKS)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
        distributed = DistributedContext(rank, rank, 0, RANKS, RANKS, "here")
        run = RunHandle(RunDir(Path(folder)), Spec(), 1)
        context = RankContext(run, distributed, CPU, Events(rank))
        for strategy in STRATEGIES:
            for path in sources(folder):
                replica = replica_under(strategy, context)
                found[strategy, path.name] = load(replica, path, context)
            found[strategy, "refused"] = refused(context, strategy, sources(folder)[0])
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        found["error"] = traceback.format_exc()
    torch.save(found, f"{folder}/rank-{rank}")


def sources(folder):
    return [Path(folder) / name for name in ("w.safetensors", "directory", "run")]


def write_sources(folder, monkeypatch):
    """The same weights as one file, as several with an index, and in a run directory."""
    context, replica = job_of(folder / "run"), replica_of()
    replica.module = filled_net()
    replica.optimizer = torch.optim.AdamW(replica.module.parameters())
    save(context, replica, 6)
    file, directory, run_dir = sources(folder)
    safetensors.torch.save_file(replica.module.state_dict(), file)
    directory.mkdir()
    monkeypatch.setattr(export, "MAX_FILE_BYTES", 100)
    assert export.main([str(run_dir), "--out", str(directory)]) == 0


@pytest.fixture
def source_paths(tmp_path, process_group, monkeypatch):
    write_sources(tmp_path, monkeypatch)
    return sources(tmp_path)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, process_group):
    """What each rank found. One process imports torch and forks them."""
    folder = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as monkeypatch:
        write_sources(folder, monkeypatch)
    forked_ranks.run(rank_main, [(rank, str(folder)) for rank in range(RANKS)])
    found = [torch.load(f"{folder}/rank-{rank}") for rank in range(RANKS)]
    assert not [each["error"] for each in found if "error" in each]
    return found


@pytest.mark.parametrize("source", [path.name for path in sources("")])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_rank_has_the_same_bits_and_held_one_bucket_beside_the_model(ranks, strategy, source):
    expected = tensors_sha256(filled_net().state_dict())
    for rank in range(RANKS):
        digest, most = ranks[rank][strategy, source]
        assert digest == expected
        assert LARGEST <= most < BUCKET_BYTES + LARGEST < MODEL_BYTES


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_weights_of_another_model_are_refused_on_every_rank_before_any_is_loaded(ranks, strategy):
    for rank in range(RANKS):
        text, is_unchanged = ranks[rank][strategy, "refused"]
        assert "is of another model: 0.weight: (7, 5) there, (8, 5) in train.model" in text
        assert is_unchanged


def loaded_alone(path, folder):
    replica = replica_of(seed=1)
    replica.module = net()
    weights.load_initial(replica, str(path), job_of(folder))
    return weights_sha256(replica)


def test_one_rank_takes_a_file_an_index_its_directory_and_a_run(source_paths, tmp_path):
    expected = tensors_sha256(filled_net().state_dict())
    index = source_paths[1] / "model.safetensors.index.json"
    for path in (*source_paths, index, source_paths[2] / "checkpoints" / "step-00000006"):
        assert loaded_alone(path, tmp_path / "new") == expected
    (single := tmp_path / "single").mkdir()
    source_paths[0].rename(single / "model.safetensors")
    assert loaded_alone(single, tmp_path / "new") == expected


def test_a_module_that_loads_its_tensors_in_its_own_way_does_so(source_paths, tmp_path):
    replica = replica_of(seed=1)
    replica.module, seen = net(), []
    replica.module[0].register_load_state_dict_pre_hook(lambda *values: seen.append(values[1]))
    weights.load_initial(replica, str(source_paths[0]), job_of(tmp_path / "new"))
    assert seen


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not an index of safetensors files"),
        ("[]", "is not an index of safetensors files"),
        ('{"weight_map": {"0.weight": 3}}', "is not an index of safetensors files"),
        ('{"weight_map": {"0.weight": "../w.safetensors"}}', "weight_map names files elsewhere"),
        ('{"weight_map": {"0.weight": "gone.safetensors"}}', "No such file"),
        ('{"weight_map": {"x": "model-00001-of-00004.safetensors"}}', "is not a safetensors file"),
    ],
)
def test_an_index_that_does_not_fit_its_files_is_refused(source_paths, tmp_path, text, words):
    index = source_paths[1] / "model.safetensors.index.json"
    files = set(json.loads(index.read_text())["weight_map"].values())
    assert "model-00001-of-00004.safetensors" in files
    index.write_text(text)
    with pytest.raises(UserError, match=words):
        loaded_alone(source_paths[1], tmp_path / "new")


def test_a_damaged_checkpoint_is_named(source_paths, tmp_path):
    part = source_paths[2] / "checkpoints" / "step-00000006" / "rank-00000.bin"
    data = bytearray(part.read_bytes())
    data[7] ^= 1
    part.write_bytes(data)
    with pytest.raises(UserError, match=r"train.init_from: cannot read .*run: rank-00000.bin"):
        loaded_alone(source_paths[2], tmp_path / "new")


def test_a_new_run_begins_with_the_weights_of_another(trained, tmp_path, capsys):
    run_dir, replica = trained
    assert export.main([str(run_dir.path)]) == 0
    out = run_dir.path / "weights.safetensors"
    printed = capsys.readouterr()
    assert printed.out == f"{out}\n"
    assert "after step 9: train_loss 1.286\n" in printed.err and "not finished" in printed.err
    for path in (run_dir.path, run_dir.checkpoints / "step-00000009", out):
        fresh = replica_of(seed=1)
        context = job_of(tmp_path / "new", init_from=str(path))
        assert loaded(context, fresh).global_step == 0
        assert weights_sha256(fresh) == weights_sha256(replica)


def test_weights_that_two_layers_share_are_exported_and_stay_shared(tmp_path):
    """safetensors refuses tensors that share memory."""
    context, replica = job_of(tmp_path / "old"), replica_of()
    replica.module = GPT(vocab_size=7, block_size=4, n_layer=1, n_head=1, n_embd=4)
    replica.optimizer = torch.optim.AdamW(replica.module.parameters())
    save(context, replica, 6)
    out = tmp_path / "out.safetensors"
    assert export.main([str(context.run.dir.path), "--out", str(out)]) == 0
    assert safetensors.torch.load_file(out).keys() == replica.module.state_dict().keys()
    for path in (context.run.dir.path, out):
        fresh = replica_of()
        fresh.module = GPT(vocab_size=7, block_size=4, n_layer=1, n_head=1, n_embd=4)
        fresh.optimizer = torch.optim.AdamW(fresh.module.parameters())
        loaded(job_of(tmp_path / "new", init_from=str(path)), fresh)
        assert weights_sha256(fresh) == weights_sha256(replica)
        assert fresh.module.lm_head.weight is fresh.module.transformer.wte.weight


def test_weights_that_do_not_fit_name_the_first_difference(trained, tmp_path):
    run_dir, _ = trained
    context = job_of(tmp_path / "new", init_from=str(run_dir.path))
    words = r"init_from .*trained is of another model: 0.weight: \(3, 2\) there, \(4, 2\) in"
    with pytest.raises(UserError, match=words):
        loaded(context, replica_of(width=4))
    text = tmp_path / "x.safetensors"
    text.write_text("hello, this is no such file")
    for path, words in [
        (text, "x.safetensors is not a safetensors file"),
        (tmp_path / "gone", "train.init_from: cannot read .*gone: .*No such file"),
        (tmp_path, "has no checkpoint"),
    ]:
        context = job_of(tmp_path / "new", init_from=str(path))
        with pytest.raises(UserError, match=words):
            loaded(context, replica_of())
