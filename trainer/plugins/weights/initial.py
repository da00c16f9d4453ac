"""Weights without the rest of a training: read from files, and loaded into a model."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import torch

from ....jobs.contract.checkpoint.part_file import INDEX_SUFFIX, MODEL_NAME, SUFFIX
from ...checkpoint import outline
from ...checkpoint.saved_state import check_same_tensors, model_parts
from ...checkpoint.share import BUCKET_BYTES, in_buckets, share
from ...contract import MALFORMED, MANIFEST, RunDir, checkpoint_names, files, reader
from ...errors import UserError
from ...model.replica import Replica
from ...process.run_handle import RankContext
from ...strategy.interface import Rows


class Weights(NamedTuple):
    """The tensors of a model in files: all shapes by name, and what reads one, on the CPU."""

    shapes: dict[str, tuple[int, ...]]
    read: Callable[[str], torch.Tensor]


def load_initial(replica: Replica, path: str, context: RankContext) -> None:
    """Load the weights that `train.init_from` names. All ranks call it; rank 0 reads the files.

    It broadcasts them in buckets of at most BUCKET_BYTES, or of one larger tensor. A rank holds a
    bucket beside its model or its rows of it; rank 0 one tensor more, or two tied ones.
    Names in the files lose the prefix `train.init_from_prefix`. A file may lack names that the
    model ties to another name in it: `save_pretrained` of Hugging Face leaves them out.
    Raises: UserError, which names `path`, where the tensors are not those of the model, or tied
    names have two values; before anything is loaded.
    """
    is_first, device = context.distributed.is_first, context.device
    prefix = context.train.init_from_prefix
    with open_weights(Path(path)) if is_first else nullcontext() as weights:
        shapes = share(None if weights is None else weights.shapes, device)
        own = model_parts(replica.module, replica.strategy)
        meta = partial(torch.empty, device="meta")
        saved = {name.removeprefix(prefix): meta(shape) for name, shape in shapes.items()}
        named = (replica.module.named_parameters, replica.module.named_buffers)
        # A number for the tensor of each name: tied names have the same one.
        tensors = {n: id(value) for each in named for n, value in each(remove_duplicate=False)}
        known = {tensors.get(name, name) for name in saved}
        left_out = {name for name in own if tensors.get(name, name) in known} - saved.keys()
        expected = {name: value for name, value in own.items() if name not in left_out}
        check_same_tensors(saved, expected, f"train.init_from {path} is")
        buckets: Iterator[dict[str, torch.Tensor]] = iter(())
        if weights is not None:
            _check_ties(weights, tensors, prefix, path)
            read = ((name.removeprefix(prefix), weights.read(name)) for name in weights.shapes)
            buckets = map(dict, in_buckets(read, lambda each: each[1].nbytes, BUCKET_BYTES))
        while (bucket := share(next(buckets, None), device)) is not None:
            _load(bucket, own, replica)
            bucket.clear()  # before the next one takes memory


def _check_ties(weights: Weights, tensors: Mapping[str, int], prefix: str, path: str) -> None:
    """Raise a UserError for two values of one tensor: the model would have the later one."""
    first: dict[int | str, str] = {}
    for name in weights.shapes:
        other = first.setdefault(tensors.get(name.removeprefix(prefix), name), name)
        if other != name and not torch.equal(weights.read(other), weights.read(name)):
            what = f"{other} and {name} differ, and train.model has one tensor for both"
            hint = "leave one of them out, or do not tie them"
            raise UserError(f"train.init_from {path}: {what}\n  hint: {hint}")


def _load(bucket: dict[str, torch.Tensor], own: dict[str, Any], replica: Replica) -> None:
    undivided = {}
    for name, tensor in bucket.items():
        target = own[name]
        if isinstance(target, Rows):
            first, last = replica.strategy.sharding.rows(target.shape[0])
            target.local.detach().copy_(tensor[first:last])
        else:
            undivided[name] = tensor
    if undivided:  # a module may have a way of its own to load its tensors
        replica.module.load_state_dict(undivided, strict=False)


@contextmanager
def open_weights(path: Path) -> Iterator[Weights]:
    """Open the weights that `train.init_from` names; the block reads them.

    path: a safetensors file; the index of several, or a directory with one of both, as Hugging Face
        names them; a checkpoint; or a run directory (its newest checkpoint).
    Raises: UserError, also for an error while the block reads.
    """
    try:
        with ExitStack() as stack:
            yield _opened(path, stack)
    except safetensors.SafetensorError as error:
        raise UserError(f"train.init_from: {path} is not a safetensors file: {error}") from error
    except (OSError, reader.DamageError) as error:
        raise UserError(f"train.init_from: cannot read {path}: {error}") from error


def _opened(path: Path, stack: ExitStack) -> Weights:
    if files.is_dir(path) and not files.is_file(path / MANIFEST):
        root = RunDir(path).checkpoints
        names = [path / f"{MODEL_NAME}{suffix}" for suffix in (SUFFIX, INDEX_SUFFIX)]
        found = [*filter(files.is_file, names), *(root / name for name in checkpoint_names(root))]
        if not found:
            hint = "train.init_from takes a run directory, a checkpoint of it, or safetensors files"
            raise UserError(f"{path} has no checkpoint", hint)
        path = found[0]
    if files.is_dir(path):
        contents = reader.Contents(path, reader.check(path))
        model = outline.tensors_of(outline.read(contents)["model"])
        shapes = {name: value.shape for name, value in model.items()}
        return Weights(shapes, lambda name: outline.whole(model[name], contents, is_checked=True))
    if path.name.endswith(".json"):
        try:  # `export` says how an index is built
            places = dict(json.loads(path.read_bytes())["weight_map"])
        except MALFORMED as error:
            what = f"train.init_from: {path} is not an index of safetensors files: {error}"
            raise UserError(what) from error
        opened = {
            name: stack.enter_context(safetensors.safe_open(path.parent / name, "pt"))
            for name in set(places.values())
        }
        return _of_files({name: opened[file] for name, file in places.items()})
    file = stack.enter_context(safetensors.safe_open(path, "pt"))
    return _of_files(dict.fromkeys(file.keys(), file))


def _of_files(file_of: Mapping[str, Any]) -> Weights:
    """file_of: for each tensor its open file."""
    shapes = {name: tuple(file.get_slice(name).get_shape()) for name, file in file_of.items()}
    return Weights(shapes, lambda name: file_of[name].get_tensor(name))
