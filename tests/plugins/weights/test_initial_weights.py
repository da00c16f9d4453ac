"""A new run begins with weights from files, at any number of ranks under any strategy."""

import json
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
from torch import nn

from slurm_job_kit.jobs.contract.spec import Spec, Train
from slurm_job_kit.trainer.checkpoint.digest import tensors_sha256, weights_sha256
from slurm_job_kit.trainer.checkpoint.share import share
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.plugins.export import __main__ as export
from slurm_job_kit.trainer.plugins.weights import initial
from slurm_job_kit.trainer.plugins.weights.hooks import callbacks
from slurm_job_kit.trainer.strategy import create
from tests.core.checkpoint.checkpoint_kit import job_of, replica_of, save, train
from tests.core.ranks import CPU, context_of, join, results
from tests.parts import Transformer

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("process_group")]

RANKS = 3
STRATEGIES = ("ddp", "fsdp")
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


def replica_under(strategy, context, width=7, module=None):
    torch.manual_seed(100 + context.distributed.rank)
    is_divided = strategy == "fsdp" and module is None
    module = module or net(width)
    train = Train(strategy=strategy, shard_modules=["Linear"] if is_divided else [])
    made = create(train, context.distributed, CPU)
    wrapped = made.wrap(module)
    made.trained_parameters(module)
    replica: Any = SimpleNamespace(module=module, wrapped=wrapped, strategy=made)
    return replica


def load(replica, path, context):
    """The digest after a load, and how many bytes this rank held beside the model at most."""
    held: list[Any] = []
    most = [0]

    def counted(value, device):
        value_here = share(value, device)
        if isinstance(value_here, dict) and any(
            isinstance(v, torch.Tensor) for v in value_here.values()
        ):
            held.extend(weakref.ref(each) for each in value_here.values())
            alive = [each() for each in held]
            most[0] = max(most[0], sum(each.nbytes for each in alive if each is not None))
        return value_here

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(initial, "share", counted)
        monkeypatch.setattr(initial, "BUCKET_BYTES", BUCKET_BYTES)
        initial.load_initial(replica, str(path), context)
    return weights_sha256(replica), most[0]


def refused(context, strategy, path):
    """The error where the files are of another model, and whether the weights stay."""
    replica = replica_under(strategy, context, width=8)
    before = weights_sha256(replica)
    try:
        initial.load_initial(replica, str(path), context)
    except UserError as error:
        return str(error), weights_sha256(replica) == before
    return "", False


def load_tied(strategy, context, path):
    """The digest of a model with tied weights after a load of a file that lacks one name."""
    replica = replica_under(strategy, context, module=tied())
    initial.load_initial(replica, path, context)
    return weights_sha256(replica)


def load_all(folder, rank):
    context = context_of(folder, Spec(), join(folder, rank, RANKS))
    found: dict[Any, Any] = {}
    for strategy in STRATEGIES:
        for path in sources(folder):
            found[strategy, path.name] = load(replica_under(strategy, context), path, context)
        found[strategy, "refused"] = refused(context, strategy, sources(folder)[0])
        found[strategy, "tied"] = load_tied(strategy, context, f"{folder}/tied.safetensors")
    dist.barrier()
    return found


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
    saved = run_dir / "checkpoints/step-00000006"
    assert export.main([str(saved), "--out", str(directory)]) == 0


@pytest.fixture
def source_paths(tmp_path, process_group, monkeypatch):
    write_sources(tmp_path, monkeypatch)
    return sources(tmp_path)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, process_group):
    """What each rank found."""
    folder = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as monkeypatch:
        write_sources(folder, monkeypatch)
    tied_file(folder / "tied.safetensors", without("embedding.weight"))
    return results(load_all, folder, RANKS)


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


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tied_weights_reach_every_rank_by_one_of_their_names(ranks, tmp_path, strategy):
    expected = tied_file(tmp_path / "w.safetensors")
    assert [each[strategy, "tied"] for each in ranks] == [expected] * RANKS


def loaded_alone(path, folder):
    replica, seen = replica_of(seed=1), []
    replica.module = net()
    replica.module[0].register_load_state_dict_pre_hook(lambda *values: seen.append(values[1]))
    initial.load_initial(replica, str(path), job_of(folder))
    assert seen  # a module may load its tensors in its own way
    return weights_sha256(replica)


def test_one_rank_takes_a_file_an_index_its_directory_and_a_run(source_paths, tmp_path):
    expected = tensors_sha256(filled_net().state_dict())
    index = source_paths[1] / "model.safetensors.index.json"
    for path in (*source_paths, index, source_paths[2] / "checkpoints" / "step-00000006"):
        assert loaded_alone(path, tmp_path / "new") == expected
    (single := tmp_path / "single").mkdir()
    source_paths[0].rename(single / "model.safetensors")
    assert loaded_alone(single, tmp_path / "new") == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not an index of safetensors files"),
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
    part = source_paths[2] / "checkpoints" / "step-00000006" / "rank-00000.safetensors"
    data = bytearray(part.read_bytes())
    data[-1] ^= 1  # of a tensor: the header is well
    part.write_bytes(data)
    with pytest.raises(
        UserError, match=r"train.init_from: cannot read .*run: rank-00000.safetensors"
    ):
        loaded_alone(source_paths[2], tmp_path / "new")


def test_a_new_run_begins_with_the_weights_of_another(trained, tmp_path):
    run_dir, replica = trained
    fresh = replica_of(seed=1)
    context = job_of(tmp_path / "new", init_from=str(run_dir.path))
    begun(context, fresh)
    assert weights_sha256(fresh) == weights_sha256(replica)
    train(fresh)
    digest = weights_sha256(fresh)
    begun(context, fresh, step=6)  # a resume keeps its weights
    assert weights_sha256(fresh) == digest


def test_weights_that_two_layers_share_are_exported_and_stay_shared(tmp_path):
    """safetensors refuses tensors that share memory."""
    context, replica = job_of(tmp_path / "old"), replica_of()
    replica.module = tied()
    replica.optimizer = torch.optim.AdamW(replica.module.parameters())
    save(context, replica, 6)
    out = tmp_path / "out.safetensors"
    saved = context.run.dir.checkpoints / "step-00000006"
    assert export.main([str(saved), "--out", str(out)]) == 0
    assert safetensors.torch.load_file(out).keys() == replica.module.state_dict().keys()
    for path in (context.run.dir.path, out):
        fresh = replica_of()
        fresh.module = tied()
        fresh.optimizer = torch.optim.AdamW(fresh.module.parameters())
        begun(job_of(tmp_path / "new", init_from=str(path)), fresh)
        assert weights_sha256(fresh) == weights_sha256(replica)
        assert fresh.module.head.weight is fresh.module.embedding.weight


def begun(context, replica, step=None):
    """Begin a new run with this model, or continue it after a step."""
    checkpoints = SimpleNamespace(newest_step=step)
    loop: Any = SimpleNamespace(context=context, replica=replica, checkpoints=checkpoints)
    for callback in callbacks(context.pulse):
        callback.restored(loop)


def tied():
    """A model with two names of one tensor."""
    return Transformer(layers=1, width=4, vocabulary=7)


def tied_file(path, change=lambda tensors: tensors):
    """A file with other weights of that model; the digest that a model has with them."""
    torch.manual_seed(3)
    state = {name: torch.randn_like(value) for name, value in tied().state_dict().items()}
    state["head.weight"] = state["embedding.weight"].clone()
    safetensors.torch.save_file(change(state), path)
    return tensors_sha256(state)


def without(name):
    return lambda state: {key: value for key, value in state.items() if key != name}


def test_two_values_of_a_tied_tensor_are_refused_by_name(tmp_path):
    path = tmp_path / "w.safetensors"
    tied_file(path, lambda state: state | {"head.weight": state["head.weight"] + 1})
    with pytest.raises(UserError, match=r"w.safetensors: embedding.weight and head.weight differ"):
        load_tied("ddp", job_of(tmp_path / "new"), path)


def test_the_prefix_of_the_spec_is_left_out(tmp_path):
    path = tmp_path / "w.safetensors"
    digest = tied_file(
        path, lambda state: {f"model.{name}": value for name, value in state.items()}
    )
    context = job_of(tmp_path / "new", init_from_prefix="model.")
    assert load_tied("ddp", context, path) == digest
    with pytest.raises(UserError, match=r"embedding.weight: none there"):
        load_tied("ddp", job_of(tmp_path / "new"), path)


def test_files_without_weights_are_named(tmp_path):
    text = tmp_path / "x.safetensors"
    text.write_text("hello, this is no such file")
    for path, words in [
        (text, "x.safetensors is not a safetensors file"),
        (tmp_path / "gone", "train.init_from: cannot read .*gone: .*No such file"),
        (tmp_path, "has no checkpoint"),
    ]:
        context = job_of(tmp_path / "new", init_from=str(path))
        with pytest.raises(UserError, match=words):
            begun(context, replica_of())
