"""Checks the keys of the section train that divide a model or treat its blocks."""

from collections.abc import Iterator

from ...contract.problems import Problem
from ...contract.spec import STRATEGIES, Spec, Train


def problems(spec: Spec) -> Iterator[Problem]:
    """Yield the keys that the strategy needs or excludes."""
    strategy = spec.train.strategy
    if strategy in STRATEGIES:
        yield from _not_sharded(spec.train) if strategy == "ddp" else _sharded(spec)
        yield from _shard_size(spec)


def _key(name: str, what: str, hint: str, *also: str) -> Problem:
    """Return a problem with a key of the section train; `also`: the dotted keys it depends on."""
    others = also or ("train.strategy",)
    return Problem(("train", name), what, hint, tuple(tuple(each.split(".")) for each in others))


def _changed(train: Train, *names: str) -> Iterator[str]:
    return (name for name in names if getattr(train, name) != getattr(Train(), name))


def _sharded(spec: Spec) -> Iterator[Problem]:
    """Yield the keys that fsdp and hsdp exclude."""
    train, strategy = spec.train, f"train.strategy {spec.train.strategy}"
    if train.precision == "fp16":
        what = f"fp16 excludes {strategy}: there is no gradient scaler over shards"
        yield _key("precision", what, "write precision: bf16, or strategy: ddp")
    for name in _changed(train, "static_graph", "gradient_as_bucket_view", "bucket_cap_mb"):
        what = f"is an option of DDP, which {strategy} does not use"
        yield _key(name, what, f"leave {name} out")
    if train.channels_last:
        what = f"excludes {strategy}: FSDP2 takes contiguous weights only"
        yield _key("channels_last", what, "leave channels_last out, or write strategy: ddp")
    if train.offload_optimizer and not spec.slurm.num_gpus:
        hint = "set slurm.gpus_per_node, or leave offload_optimizer out"
        what = "needs GPUs, and slurm.gpus_per_node is 0"
        yield _key("offload_optimizer", what, hint, "slurm.gpus_per_node")


def _not_sharded(train: Train) -> Iterator[Problem]:
    """Yield the keys that only fsdp and hsdp have."""
    for name in _changed(train, "reshard_after_forward", "offload_optimizer"):
        what = f"is for train.strategy fsdp and hsdp, not for {train.strategy}"
        yield _key(name, what, f"leave {name} out")
    is_used = train.activation_checkpointing or train.compile == "blocks"
    if train.shard_modules and not is_used:
        hint = "leave it out, or set activation_checkpointing or compile: blocks"
        yield _key("shard_modules", f"has no effect with train.strategy {train.strategy}", hint)


def _shard_size(spec: Spec) -> Iterator[Problem]:
    """Check the size of hsdp's groups. The trainer checks it where GPUs give the ranks."""
    train = spec.train
    also = ("train.strategy", "slurm.nodes", "launch.nproc_per_node")
    if train.strategy != "hsdp":
        if train.shard_size is not None:
            what = f"is for train.strategy hsdp, not for {train.strategy}"
            yield _key("shard_size", what, "write strategy: hsdp, or leave it out", also[0])
        return
    world_size, most = spec.num_ranks, spec.slurm.most_nodes
    if train.shard_size is None and world_size == most > 1:
        what = "hsdp shards within a node, and a node has one rank"
        hint = "set shard_size, or write strategy: fsdp or ddp"
        yield _key("strategy", what, hint, *also[1:])
    elif train.shard_size is not None and world_size > 1:
        counts = (spec.nproc_per_node * n for n in range(spec.slurm.fewest_nodes, most + 1))
        if wrong := next((count for count in counts if count % train.shard_size), None):
            what = f"{train.shard_size} does not divide the {wrong} ranks"
            yield _key("shard_size", what, "write a divisor, or strategy: fsdp", *also)
