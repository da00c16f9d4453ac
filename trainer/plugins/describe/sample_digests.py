"""Compares a few samples of each data set with those of rank 0, and of the starts before.

Files may have changed, and code may number labels or order files otherwise in another process or on
another node. The loss alone does not show it. A stream is left out: its samples have no index.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any

from torch.utils import _pytree as pytree

from ... import seeds
from ...contract import ProvenanceOrigin, installation, records
from ...data.feed import IndexedBatches
from ...data.sources import content_sha256
from ...errors import HINT, OtherData
from ...process.context import broadcast_bytes
from ...training.loop import Loop
from ...user_code import is_user_code

COUNT, READ_S = 16, 1  # of each set, spread over it; one sample may take seconds
NUM_REREADS, TRIAL_SIZE = 5, 4
# Keys of an environment: the digests, and when a submit or `resume --code` froze the code.
DIGESTS, FROZEN = "samples", "frozen"

# Of samples that differ when they are read again: the warning, and the reason of the result.
INEXACT = (
    "a sample has other values when it is read again: the data set or train.transform draws from a "
    "generator of its own; the exactness of a run that was resumed is then `approximate`"
)
RESUMED = "train.dataset or train.transform draws from a generator of its own, anew after step {}"

# Of each set by its name: its number of samples, and the digest of those that are read, which is
# empty where the sample could not be read.
Digests = dict[str, tuple[int, list[str]]]


def of_rank(loop: Loop) -> Digests:
    """Return the digests that this rank reads."""
    batches, held_out, found = loop.data.train_batches, loop.data.held_out, Digests()
    if isinstance(batches, IndexedBatches):
        size = batches.batches.num_samples
        found["training set"] = size, [*_read(loop, batches.reader, size)]
    if held_out is not None:
        found["held-out set"] = len(held_out), [*_read(loop, held_out.reader, len(held_out))]
    return found


def _read(loop: Loop, reader: Any, size: int) -> Iterator[str]:
    """Yield the digest of each sample that is compared, until the time is over."""
    until = time.monotonic() + READ_S
    for index in _indices(size):
        digest = ""
        if index == 0 or time.monotonic() < until:
            with contextlib.suppress(Exception):  # the training meets it, if it reads the sample
                seed = seeds.mix(seeds.SAMPLE, loop.train.seed, 0, index)
                seeds.seed_all(seed, loop.device)
                content = pytree.tree_map(_without_folder, reader.at([index]).content)
                digest = content_sha256(content)[:16]
        yield digest


def _indices(size: int) -> list[int]:
    return sorted({place * (size - 1) // (COUNT - 1) for place in range(COUNT)})


def _without_folder(value: Any) -> Any:
    """Return a path without its folder, which may be one of the job or the node."""
    return os.path.basename(value) if isinstance(value, str) and os.path.isabs(value) else value


def difference(
    was: Digests, now: Digests, is_same_machine: bool = True
) -> tuple[str, str, str] | None:
    """Return what differs, with both values; None where nothing does.

    Other processors and versions may decode other values of a sample: only sizes are compared then.
    """
    for name, (size, new) in now.items():
        old_size, old = was.get(name, (size, new))
        if old_size != size:
            return f"the {name}", f"{old_size} samples", f"{size} samples"
        for index, known, found in zip(_indices(size), old, new, strict=True):
            if is_same_machine and known and found and known != found:
                return f"sample {index} of the {name}", f"SHA-256 {known}", f"SHA-256 {found}"
    return None


def of_first_rank(loop: Loop, is_like_first: bool) -> dict[str, Any]:
    """Return, on all ranks, what rank 0's environment has of the samples.

    is_like_first: whether this rank has the processor and the library versions of rank 0.
    Raises: OtherData where this rank reads other samples than rank 0.
    """
    context, own, text = loop.context, of_rank(loop), b""
    if context.distributed.is_first:
        known = records.read_leniently(ProvenanceOrigin, context.run.dir.provenance)
        text = json.dumps({DIGESTS: own, FROZEN: known and known.frozen}).encode()
    # All ranks: each compares its samples with those of rank 0.
    first: dict[str, Any] = json.loads(broadcast_bytes(text, context.device))
    found = difference(first[DIGESTS], own, is_like_first)
    if found is not None and not loop.data.is_of_rank and is_repeatable(loop):
        what, on_first, here = found
        raise OtherData(
            f"train.dataset {loop.train.dataset} differs between ranks: {what} has {on_first} on "
            f"rank 0, and {here} on rank {context.distributed.rank} ({context.distributed.host})"
            f"{HINT}give all nodes the same files, and sort what lists a folder; a data set with "
            "other samples on each rank takes the parameters rank and world_size"
        )
    return first


def is_repeatable(loop: Loop) -> bool:
    """Return whether this rank reads the same again; a generator of the user's may draw anew."""
    first = of_rank(loop)
    is_same = all(difference(first, of_rank(loop)) is None for _ in range(NUM_REREADS))
    loop.data.train_batches.resumes_exactly &= is_same
    return is_same


def try_again(loop: Loop) -> None:
    """Read the first samples twice, which the user's code may draw or transform otherwise."""
    batches, train, samples = loop.data.train_batches, loop.train, set()
    is_own = any(map(is_user_code, (train.dataset, train.transform)))
    if not is_own or not isinstance(batches, IndexedBatches):
        return
    with contextlib.suppress(Exception):  # the training meets it, with the right step
        for _ in range(2):
            seeds.seed_all(seeds.mix(seeds.SAMPLE, train.seed), loop.device)
            raw = batches.reader.at(range(min(TRIAL_SIZE, batches.batches.num_samples)))
            samples.add(content_sha256(batches.to_device(raw, (train.seed, 0))))
    batches.resumes_exactly = len(samples) < 2


def other_data(loop: Loop, what: str, before: str, here: str) -> OtherData:
    """Return the error for samples that are others than at a start before."""
    again = installation.command("resume", loop.context.run.dir.run_id, "", "code")
    return OtherData(
        f"train.dataset {loop.train.dataset}: {what} has {here}, and had {before} before"
        f"{HINT}bring back the files of that start, and sort what lists a folder or takes a set; "
        f"{again} takes the samples as they are now"
    )
