"""Weights without the rest of a training: read from files, and loaded into a model."""

from __future__ import annotations

import json
import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import torch

from ..contract import MALFORMED, MANIFEST, SUFFIX, RunDir, checkpoint_names, reader, shared_files
from ..errors import UserError
from ..model.replica import Replica
from ..process.run_handle import RankContext
from ..strategy.sharding import Rows
from . import outline
from .outline import StoredTensor
from .saved_state import check_same_tensors, model_parts
from .share import BUCKET_BYTES, share

INDEX_SUFFIX = ".safetensors.index.json"
# What DDP, torch.compile, FSDP and activation checkpoints put into names.
WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
MAX_PREFIXES = 3  # of those that fit some names only
MODEL_NAME = "model"  # the name without suffix that Hugging Face looks for in a directory


class Weights(NamedTuple):
    """The tensors of a model in files.

    shapes: of all, by name.
    read: returns the tensor with a name, on the CPU.
    """

    shapes: dict[str, tuple[int, ...]]
    read: Callable[[str], torch.Tensor]


def load_initial(replica: Replica, path: str, context: RankContext) -> None:
    """Load the weights that `train.init_from` names. All ranks call it; rank 0 reads the files.

    It broadcasts them in buckets, each of which ends with the tensor that fills BUCKET_BYTES. No
    rank holds more than a bucket beside its model: of a divided tensor it keeps its rows.
    The names may differ by a prefix (`_naming`). A file may lack names that the model ties to
    another name in it: `save_pretrained` of Hugging Face leaves them out.
    Raises: UserError, which names `path`; before anything is loaded where the tensors are not those
    of the model, or where the file has two values for one tied tensor.
    """
    is_first, device = context.distributed.is_first, context.device
    with open_weights(Path(path)) if is_first else nullcontext() as weights:
        shapes = share(None if weights is None else weights.shapes, device)
        own, ties = model_parts(replica), _ties(replica.module)
        naming = _naming(list(shapes), list(own), ties)
        saved = {
            naming.of(name): torch.empty(shape, device="meta") for name, shape in shapes.items()
        }
        left_out = _implied_names(saved, ties)
        expected = {name: value for name, value in own.items() if name not in left_out}
        check_same_tensors(saved, expected, f"train.init_from {path}{naming.what} is")
        if weights is not None:
            _check_tied(weights, naming, ties, path)
        if naming.what:
            context.distributed.log(f"train.init_from {path}{naming.what} fits train.model")
        buckets = iter(()) if weights is None else _buckets(weights, naming)
        while (bucket := share(next(buckets, None), device)) is not None:
            _load(bucket, own, replica)
            bucket.clear()  # before the next one takes memory


class _Naming(NamedTuple):
    """How names in files become names in the model.

    of: returns the model's name for a name in the files.
    what: how they were changed, for a message; "" where they were not.
    """

    of: Callable[[str], str]
    what: str = ""


def _naming(saved: list[str], own: list[str], ties: list[set[str]]) -> _Naming:
    """Return the naming with the fewest names that are on one side only; unchanged names first."""

    def num_strangers(naming: _Naming) -> int:
        names = {naming.of(name) for name in saved}
        if len(names) < len(saved):  # two names became one
            return len(saved) + len(own)
        return len(names.symmetric_difference(set(own) - _implied_names(names, ties)))

    return min(_namings(saved, own), key=num_strangers)


def _namings(saved: list[str], own: list[str]) -> Iterator[_Naming]:
    """Yield possible namings: with or without the wrappers of torch, and with another prefix."""
    is_wrapped = any(_unwrapped(name) != name for name in (*saved, *own))
    wrappers = " and ".join(f"{each}." for each in WRAPPERS)
    for plain, without in ((str, ""), (_unwrapped, f" without {wrappers} in its names"))[
        : 1 + is_wrapped
    ]:
        names = {plain(name): name for name in own}
        there = [plain(name) for name in saved]
        changes: list[tuple[Callable[[str], str], str]] = [(str, without)]
        for prefix in _prefixes(there, list(names)):
            strip = operator.methodcaller("removeprefix", prefix)
            changes.append((strip, f"{without} without the prefix {prefix} of its names"))
        for prefix in _prefixes(list(names), there):
            changes.append((prefix.__add__, f"{without} with the prefix {prefix} before its names"))
        for change, what in changes:
            yield _Naming(_renaming(plain, change, names), what and f", read{what},")


def _renaming(
    plain: Callable[[str], str], change: Callable[[str], str], names: Mapping[str, str]
) -> Callable[[str], str]:
    """Return a function that changes a plain name. names: the model's by their plain ones."""

    def rename(name: str) -> str:
        changed = change(plain(name))
        return names.get(changed, changed)

    return rename


def _prefixes(longer: list[str], shorter: list[str]) -> list[str]:
    """Return what stands before the names of `shorter` in those of `longer`, the usual first."""
    ends, counts = set(shorter), Counter[str]()
    for name in longer:
        parts = name.split(".")
        for number in range(1, len(parts)):
            if ".".join(parts[number:]) in ends:
                counts[".".join((*parts[:number], ""))] += 1
    return [prefix for prefix, _ in counts.most_common(MAX_PREFIXES)]


def _unwrapped(name: str) -> str:
    """Return a name without what wrappers of modules put into it."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def _ties(module: torch.nn.Module) -> list[set[str]]:
    """Return the sets of two or more names that are one tensor of the model."""
    names: dict[int, set[str]] = {}
    for named in (module.named_parameters, module.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            names.setdefault(id(tensor), set()).add(name)
    return [each for each in names.values() if len(each) > 1]


def _implied_names(saved: Collection[str], ties: list[set[str]]) -> set[str]:
    """Return the model's names that the files lack because they have another name of the tensor."""
    return {name for names in ties if names & set(saved) for name in names - set(saved)}


def _check_tied(weights: Weights, naming: _Naming, ties: list[set[str]], path: str) -> None:
    """Raise UserError where the files have different values for one tensor of the model."""
    for names in ties:
        first, *others = [name for name in weights.shapes if naming.of(name) in names] or [""]
        for other in others:
            if not _are_equal_bytes(weights.read(first), weights.read(other)):
                raise UserError(
                    f"train.init_from {path} has different values of {first} and {other}, which "
                    "are one tensor in train.model (tied weights)\n"
                    "  hint: untie them in train.model, or remove one of the two from the file"
                )


def _are_equal_bytes(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two tensors have the same type and bits; NaN equals NaN."""
    pair = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (first, second)]
    return first.dtype == second.dtype and torch.equal(*pair)


def _buckets(weights: Weights, naming: _Naming) -> Iterator[dict[str, torch.Tensor]]:
    bucket: dict[str, torch.Tensor] = {}
    for name in weights.shapes:
        bucket[naming.of(name)] = weights.read(name)
        if sum(tensor.nbytes for tensor in bucket.values()) >= BUCKET_BYTES:
            yield bucket
            bucket = {}
    if bucket:
        yield bucket


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
        with ExitStack() as files:
            yield _opened(path, files)
    except safetensors.SafetensorError as error:
        raise UserError(f"train.init_from: {path} is not a safetensors file: {error}") from error
    except (OSError, reader.DamageError) as error:
        raise UserError(f"train.init_from: cannot read {path}: {error}") from error


def _opened(path: Path, files: ExitStack) -> Weights:
    if shared_files.is_dir(path) and not shared_files.is_file(path / MANIFEST):
        names = [path / f"{MODEL_NAME}{suffix}" for suffix in (SUFFIX, INDEX_SUFFIX)]
        path = next(filter(shared_files.is_file, names), None) or newest(path)
    if shared_files.is_dir(path):
        return _of_checkpoint(files.enter_context(reader.Contents.open(path)))
    if path.name.endswith(".json"):
        places = _places(path)
        opened = {name: _safe_open(path.parent / name, files) for name in set(places.values())}
        return _of_files({name: opened[file] for name, file in places.items()})
    file = _safe_open(path, files)
    return _of_files(dict.fromkeys(file.keys(), file))


def _safe_open(path: Path, files: ExitStack) -> Any:
    return files.enter_context(safetensors.safe_open(path, "pt"))


def _places(index: Path) -> dict[str, str]:
    """Return the name of the file of each tensor. `export` says how an index is built."""
    try:
        places: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
        if not all(Path(name).name == name for name in places.values()):
            raise ValueError("weight_map names files elsewhere")
    except MALFORMED as error:
        message = f"train.init_from: {index} is not an index of safetensors files: {error}"
        raise UserError(message) from error
    return places


def _of_files(file_of: Mapping[str, Any]) -> Weights:
    """file_of: for each tensor its open file."""
    shapes = {name: tuple(file.get_slice(name).get_shape()) for name, file in file_of.items()}
    return Weights(shapes, lambda name: file_of[name].get_tensor(name))


def _of_checkpoint(contents: reader.Contents) -> Weights:
    model = tensors_of(outline.read(contents)["model"])
    shapes = {name: value.shape for name, value in model.items()}
    return Weights(shapes, lambda name: model[name].read(contents))


def newest(run_dir: Path) -> Path:
    """Return the newest committed checkpoint of a run directory, which may be damaged."""
    root = RunDir(run_dir).checkpoints
    names = checkpoint_names(root)
    if not names:
        raise UserError(
            f"{run_dir} has no checkpoint\n  hint: train.init_from takes a run directory, a "
            "checkpoint of it, or an export as safetensors"
        )
    return root / names[0]


def tensors_of(model: Mapping[str, Any]) -> dict[str, StoredTensor]:
    """Return the tensors of a model's state; its other values are what modules add to it."""
    return {name: value for name, value in model.items() if isinstance(value, StoredTensor)}
