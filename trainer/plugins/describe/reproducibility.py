"""Describes what the bits of a result depend on, and derives whether a resume is bitwise."""

import contextlib
import dataclasses
import fnmatch
import hashlib
import itertools
import json
import os
import platform
import re
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from ...process.context import gather, of_first
from ...process.run_handle import RankContext
from ...training.loop import Loop
from . import sample_digests
from .sample_digests import DIGESTS, FROZEN, difference

CODE = "code"
WORLD_SIZE = "world size"
TORCH = "torch"
NAMED_FIRST = (CODE, WORLD_SIZE, TORCH, "train.strategy", "train.shard_size")
# Keys of the section train that choose the samples or their values.
SAMPLES = tuple(
    f"train.{key}"
    for key in ("seed", "dataset", "dataset_args", "transform", "transform_args", "collate")
)
# Of an environment that is not the first one: the step after which it began.
SINCE = "after step"
# Of an attempt that continued with other samples: the step after which it did, and why.
INEXACT = "resumed inexactly"
MAX_NAMED = 4
# What libraries compute with: other values give other bits. CUBLAS_WORKSPACE_CONFIG is left out, as
# the trainer sets it; ATEN_CPU_CAPABILITY shows in the instruction set. Source: the documentation
# of oneMKL, oneDNN, OpenBLAS, cuBLAS, cuDNN, NCCL, MIOpen, rocBLAS and torch.
_COMPUTES = (
    *("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "ONEDNN_MAX_CPU_ISA"),
    *("DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"),
    *("OPENBLAS_CORETYPE", "KMP_DETERMINISTIC_REDUCTION", "NVIDIA_TF32_OVERRIDE"),
    *("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_BLAS_PREFER_*", "DISABLE_ADDMM_CUDA_LT"),
    *("CUBLAS_EMULAT*", "CUBLASLT_*", "CUDNN_CONV_*", "TORCH_CUDNN_*", "NCCL_ALGO", "NCCL_PROTO"),
    *("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS"),
    *("NCCL_NTHREADS", "NCCL_BUFFSIZE", "NCCL_NVLS_ENABLE", "NCCL_COLLNET_ENABLE"),
    *("MIOPEN_DEBUG_*", "MIOPEN_FIND_*", "ROCBLAS_*", "HIPBLASLT_*", "HSA_OVERRIDE_GFX_VERSION"),
    *("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "TORCHINDUCTOR_EMULATE_PRECISION_CASTS"),
)


def note_attempt(loop: Loop) -> None:
    """Add this attempt's environment to the saved state; give the loop the exactness."""
    context, state, batches = loop.context, loop.state, loop.data.train_batches
    now = describe(context)
    sample_digests.try_again(loop)
    now |= _samples(loop, now)
    own = torch.tensor(int(batches.resumes_exactly), device=context.device)
    if not all(map(bool, gather(own))):  # all ranks: the samples of one may go on otherwise
        inexact = batches.inexact or sample_digests.INEXACT
        context.distributed.log(f"warning: train.dataset: {inexact}")
        if state.global_step > 0:
            now[INEXACT] = [state.global_step, batches.resumed or sample_digests.RESUMED]
    state.environments = extend_history(state.environments, now, state.global_step)
    loop.exactness = exactness(state.environments, context.is_deterministic)


def unsaved_buffers(loop: Loop) -> dict[str, torch.Tensor]:
    """Return copies of the dense buffers that no checkpoint has: `persistent=False`."""
    module, saved = loop.replica.module, loop.replica.module.state_dict()
    return {
        name: each.to("cpu", copy=True)
        for name, each in module.named_buffers()
        # No tensor that another rank would have to be asked about, or that has no comparison.
        if name not in saved
        and (type(each), each.layout) == (torch.Tensor, torch.strided)
        and not (each.is_meta or each.is_nested)
    }


def _samples(loop: Loop, now: dict[str, Any]) -> dict[str, Any]:
    """Return the digests of samples of this attempt, those of an earlier one where they agree.

    now: this attempt's environment without them. Raises: OtherData.
    """
    context, ranks = loop.context, now["ranks"]
    found = sample_digests.of_first_rank(loop, ranks[context.distributed.rank] == ranks[0])
    # Where each rank has samples of its own, another number of ranks changes them.
    keys = (CODE, FROZEN, *SAMPLES, *[WORLD_SIZE] * loop.data.is_of_rank)
    known = (each for each in loop.state.environments if DIGESTS in each)
    same = [each for each in known if _is_alike(each, now | found, keys)]
    machine = {name for name in now if not name.startswith("train.")} - {CODE, WORLD_SIZE, "ranks"}
    alike = [each for each in same if _is_alike(each, now, machine)]
    if not same:
        return found
    last = (alike or same)[-1][DIGESTS]
    differs = difference(last, found[DIGESTS])
    if differs is None or not of_first(sample_digests.is_repeatable(loop), context.device):
        return {**found, DIGESTS: last}
    if (wrong := difference(last, found[DIGESTS], is_same_machine=bool(alike))) is not None:
        raise sample_digests.other_data(loop, *wrong)
    return found


def describe(context: RankContext) -> dict[str, Any]:
    """Return this attempt's environment, the same on every rank.

    `ranks` has one fingerprint of the environment per rank, so that differences between ranks show.
    """
    device = context.device
    own: dict[str, Any] = {
        TORCH: str(torch.__version__),
        **{package: _version(package) for package in ("numpy", "pillow")},
        "processor": processor(),
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "threads per rank": torch.get_num_threads(),
        WORLD_SIZE: context.distributed.world_size,
        "device": device.type,
    }
    if device.type == "cuda":
        own["GPU"] = torch.cuda.get_device_name(device)
        own["CUDA"] = torch.version.cuda
        own["cuDNN"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        own["NCCL"] = list(torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    computes = re.compile("|".join(map(fnmatch.translate, _COMPUTES)))
    names = [name for name in sorted(os.environ) if computes.fullmatch(name)]
    own |= {name: os.environ[name] for name in names if "_LOG_" not in name}  # these only print
    own[CODE] = context.run.code_digest
    # A resume may change keys of the section `train`.
    own |= {f"train.{key}": value for key, value in dataclasses.asdict(context.train).items()}
    if context.train.strategy == "hsdp":  # by default the ranks of a node, which is not in the spec
        place = context.distributed
        own["train.shard_size"] = context.train.shard_size or place.local_world_size
    digest = hashlib.sha256(json.dumps(own, sort_keys=True).encode()).digest()[:7]
    fingerprint = torch.tensor(int.from_bytes(digest, "big"), dtype=torch.int64, device=device)
    return {**own, "ranks": [int(value) for value in gather(fingerprint)]}


def _version(package: str) -> str:
    """Return the version of a package that computes or reads samples; "none" without it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def processor() -> str:
    """Return the processor's model name: oneDNN's blocking depends on more than its features."""
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        if name := re.search(r"^model name.*?:(.*)", text, re.MULTILINE):
            return name[1].strip()
    return platform.processor()


def extend_history(
    history: list[dict[str, Any]], now: dict[str, Any], step: int = 0
) -> list[dict[str, Any]]:
    """Return the environments of all attempts so far, by the step of their beginning.

    Each is there once, but a code or a world size that comes back is there again: its steps are
    named, too.
    now: this attempt's, which continues after `step`.
    """
    own, *known = (
        {name: each[name] for name in each if name not in (SINCE, FROZEN)}
        for each in (now, *history)
    )
    if own in known and _is_alike(own, known[-1], (CODE, WORLD_SIZE)):
        frozen = {FROZEN: now[FROZEN]} if FROZEN in now else {}
        pairs = zip(known, history, strict=True)
        return [each | frozen if one == own else each for one, each in pairs]
    return [*history, {**now, SINCE: step}]


def exactness(history: list[dict[str, Any]], deterministic: bool) -> tuple[str, str]:
    """Return how a run with these environments relates to one without a stop, and the reason.

    "bitwise": equal bits. "same samples": the same samples in the same steps. "approximate": other
    samples, or other values of them, after a resume.
    history: at least one environment, from `extend_history`.
    """
    if found := [each[INEXACT] for each in history if INEXACT in each]:
        reason = found[0][1]
        steps = sorted({step for step, why in found if why == reason})
        return "approximate", reason.format(" and ".join(map(str, steps)))
    others = [key for key in SAMPLES if not all(_is_alike(history[0], x, [key]) for x in history)]
    if others:
        return "approximate", f"{' and '.join(others)} changed, so the samples are others"
    digests = [each[DIGESTS] for each in history if DIGESTS in each]
    if found := [pair for each in digests if (pair := difference(digests[0], each))]:
        return "approximate", "{} had {}, then {}: the samples are others".format(*found[0])
    if not deterministic:
        reason = "train.deterministic is off, so operators may vary from run to run"
        return "same samples", "; ".join([reason, *_changes(history, [WORLD_SIZE, TORCH])])
    if len(history) == 1:
        return "bitwise", "deterministic operators, and one environment in every attempt"
    names = sorted(set().union(*history) - {SINCE, "ranks", DIGESTS, FROZEN, *NAMED_FIRST})
    changes = itertools.islice(_changes(history, (*NAMED_FIRST, *names)), MAX_NAMED)
    return "same samples", "; ".join(changes) or (
        "some ranks ran on another kind of processor or library version"
    )


def _is_alike(one: dict[str, Any], other: dict[str, Any], names: Iterable[str]) -> bool:
    return all(one.get(name) == other.get(name) for name in names)


def _changes(history: list[dict[str, Any]], names: Iterable[str]) -> Iterator[str]:
    """Yield a text for each of these properties that changed, with the steps of its changes."""
    for name in names:
        pairs = itertools.pairwise(history)
        changes = [now for was, now in pairs if was.get(name) != now.get(name)]
        if changes and name == CODE:
            steps = " and ".join(str(now.get(SINCE)) for now in changes)
            yield f"the code changed after step {steps}"
        elif changes:
            then = [f"then {_shown(now, name)} after step {now.get(SINCE, 0)}" for now in changes]
            yield ", ".join([f"{name} was {_shown(history[0], name)}", *then])


def _shown(environment: dict[str, Any], name: str) -> str:
    return json.dumps(environment.get(name)).strip('"')
