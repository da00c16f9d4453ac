"""Damage in a checkpoint of several ranks: all of them find it, and load the same older one."""

import errno
import os
import shutil
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from slurm_job_kit.jobs.contract.checkpoint import reader
from slurm_job_kit.jobs.contract.checkpoint.names import checkpoint_name
from slurm_job_kit.jobs.contract.spec import Spec, Train
from slurm_job_kit.trainer.checkpoint.checkpoints import create
from slurm_job_kit.trainer.checkpoint.digest import optimizer_sha256, weights_sha256
from slurm_job_kit.trainer.checkpoint.loading import ReadAhead
from slurm_job_kit.trainer.data.sources import Samples
from slurm_job_kit.trainer.errors import Superseded, TransientStorageError
from slurm_job_kit.trainer.model import build
from slurm_job_kit.trainer.model.training_data import build_data
from slurm_job_kit.trainer.training.loop import train_step
from tests.core.checkpoint.test_commit import HOW, damage
from tests.core.ranks import context_of, join, results

pytestmark = pytest.mark.long  # several ranks

OLDER, NEWEST = 1, 2  # the steps of the checkpoints
WIDTH = 96  # each rank's file is larger than two pages
TRAIN: dict[str, dict[str, Any]] = {
    "fsdp": {"strategy": "fsdp", "shard_modules": ["Linear"]},
    "hsdp": {"strategy": "hsdp", "shard_size": 2, "shard_modules": ["Linear"]},
}
# Ranks, and how many of them write a file.
SLOW = pytest.mark.slow
GROUPS = [
    pytest.param("fsdp", 3, 3, marks=SLOW),
    ("fsdp", 2, 2),
    pytest.param("hsdp", 4, 2, marks=SLOW),
]


def net():
    layers = [nn.Linear(3, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1))


def points():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(48, size, generator=generator) for size in (3, 1))
    return Samples(x, y.squeeze(-1)), None


class Rank:
    """One of several ranks, with a run of two checkpoints."""

    def __init__(self, folder, rank, world_size, strategy, **more):
        self.log: list[str] = []
        patch = pytest.MonkeyPatch()  # this process ends with its rank
        patch.setattr(reader, "RETRY_DELAYS_S", (0, 0))
        patch.setattr("slurm_job_kit.trainer.process.context.log", self.log.append)
        place = join(folder, rank, world_size)
        train = Train(
            model=f"{__name__}:net",
            dataset=f"{__name__}:points",
            objective="regression",
            micro_batch_size=4,
            transform=None,
            **TRAIN[strategy],
            **more,
        )
        self.context = context_of(folder / "run", Spec(train=train), place)
        self.run = self.context.run.dir
        if rank == 0:
            self.run.checkpoints.mkdir(parents=True)
            self.run.owner.write_text('{"attempt": 1}')
        dist.barrier()
        self.data = build_data(self.context)
        self.replica = build.build_replica(self.context, self.data)
        self.expected = self._train(train)

    def _train(self, train):
        """Save after each of two steps; return the bits after each."""
        self.checkpoints = create(self.context, self.data)
        state = self.checkpoints.load(self.replica, ReadAhead(self.context))
        bits = {}
        for step in (OLDER, NEWEST):
            batches = iter([self.data.train_batches.example()])
            for row in train_step(self.replica, batches, 1, 0.1, train):
                state.window += row
            state.global_step = step
            bits[step] = self.bits()
            self.save(state)
        return bits

    def save(self, state):
        self.checkpoints.save(self.replica, state)
        self.checkpoints.finish(lambda: None)

    def bits(self):
        return weights_sha256(self.replica), optimizer_sha256(self.replica)

    def load(self):
        """The step and the bits of the newest undamaged checkpoint, loaded into other weights."""
        for parameter in self.replica.module.parameters():
            parameter.detach().fill_(7)
        self.replica.optimizer.state.clear()
        self.checkpoints = create(self.context, self.data)
        state = self.checkpoints.load(self.replica, ReadAhead(self.context))
        return state.global_step, self.bits()

    def harmed(self, harm):
        """(step, bits, reasons) of a load after rank 0 did this harm to the newest checkpoint."""
        kept, root = self.run.path / "kept", self.run.checkpoints
        if self.context.distributed.is_first:
            if not kept.exists():
                shutil.copytree(root, kept)
            shutil.rmtree(root)
            shutil.copytree(kept, root)
            harm(root / checkpoint_name(NEWEST), root / checkpoint_name(OLDER))
        dist.barrier()
        step, bits = self.load()
        aside = [path.name for path in root.glob("quarantined-*")]
        reasons = [path.read_text() for path in root.glob("quarantined-*/REASON")]
        dist.barrier()
        return step, bits, aside, reasons


def shard(rank):
    return f"rank-{rank:05}.safetensors"


def swap(newest, older):
    """Give the last two shards each other's names."""
    names = sorted(newest.glob("rank-*.safetensors"))[-2:]
    contents = [name.read_bytes() for name in names]
    for name, content in zip(names, reversed(contents), strict=True):
        name.write_bytes(content)


def damage_all(newest, older):
    """Each rank finds damage in its own shard."""
    for path in newest.glob("rank-*.safetensors"):
        damage(path, "flip")


def harms(num_shards):
    """The harms by the file that the reason names, and their kind."""
    outcomes: dict[tuple[str, str], Any] = {}
    for name in ["manifest.json", "state.json", *map(shard, range(num_shards))]:
        for how in HOW:
            if how != "zeroed page" or not name.endswith(".json"):  # they have no second page
                outcomes[name, how] = lambda new, old, name=name, how=how: damage(new / name, how)
        outcomes[name, "of another checkpoint"] = lambda new, old, name=name: shutil.copyfile(
            old / name, new / name
        )
    # state.json of the older checkpoint goes with its own manifest.
    del outcomes["manifest.json", "of another checkpoint"]
    outcomes[shard(num_shards - 2), "swapped"] = swap
    outcomes[shard(0), "all damaged"] = damage_all
    return outcomes


def harmed_in_turn(folder, rank, world_size, strategy):
    """Do every harm in turn; return what this rank found."""
    me = Rank(folder, rank, world_size, strategy)
    found: dict[Any, Any] = {"expected": me.expected}
    found["undamaged"] = me.harmed(lambda new, old: None)
    for name, harm in harms(me.replica.strategy.sharding.num_shards).items():
        found[name] = me.harmed(harm)
    return {**found, "log": me.log}


def only_rank_1(folder, rank, world_size, kind):
    """Let rank 1 alone see its shard fail or have other bytes; return each rank's error."""
    me = Rank(folder, rank, world_size, "fsdp")
    really = os.open

    def open_elsewhere(name, flags, *more, **options):
        if not str(name).endswith(f"{checkpoint_name(NEWEST)}/{shard(1)}"):
            return really(name, flags, *more, **options)
        if kind == "other bytes":
            return really(str(name).replace(checkpoint_name(NEWEST), checkpoint_name(OLDER)), flags)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), name)

    if rank == 1:
        pytest.MonkeyPatch().setattr(os, "open", open_elsewhere)
    try:
        me.load()
    except Exception as error:
        return isinstance(error, TransientStorageError), str(error)


def superseded(folder, rank, world_size):
    """Save when a newer attempt owns the run."""
    me = Rank(folder, rank, world_size, "fsdp")
    state = create(me.context, me.data).load(me.replica, ReadAhead(me.context))
    dist.barrier()
    if rank == 0:
        me.run.owner.write_text('{"attempt": 2}')
    dist.barrier()
    with pytest.raises(Superseded):
        me.save(state)
    dist.barrier()


def by_fewer_ranks(folder, rank, world_size):
    """Damage the file of the last rank; return what the others load without it, and expect."""
    me = Rank(folder, rank, world_size, "fsdp", global_batch_size=12)
    dist.destroy_process_group()
    if rank == world_size - 1:
        return None
    place = join(folder, rank, world_size - 1)
    me.context = context_of(me.run.path, me.context.run.spec, place)
    me.data = build_data(me.context)
    me.replica = build.build_replica(me.context, me.data)
    step, bits, _, reasons = me.harmed(lambda new, old: damage(new / shard(world_size - 1), "flip"))
    return (step, bits), (OLDER, me.expected[OLDER]), reasons


def test_damage_is_found_by_fewer_ranks_than_have_saved(tmp_path):
    for found, expected, reasons in results(by_fewer_ranks, tmp_path, 3, 3)[:2]:
        assert found == expected and reasons[0].startswith(shard(2))


@pytest.mark.parametrize(("strategy", "world_size", "num_shards"), GROUPS)
def test_row_20_any_damage_of_a_shard_is_found_by_all_ranks(
    tmp_path, strategy, world_size, num_shards
):
    ranks = results(harmed_in_turn, tmp_path, world_size, world_size, strategy)
    expected = ranks[0]["expected"]
    assert expected[OLDER] != expected[NEWEST]
    for found in ranks:
        assert found["undamaged"] == (NEWEST, expected[NEWEST], [], [])
        for file, how in harms(num_shards):
            step, bits, aside, reasons = found[file, how]
            assert (step, bits) == (OLDER, expected[OLDER]), (file, how)
            assert aside == [f"quarantined-{checkpoint_name(NEWEST)}"], (file, how)
            assert len(reasons) == 1 and reasons[0].startswith(file), (file, how, reasons)
    log = "\n".join(ranks[0]["log"])
    assert log.count("is damaged and now quarantined-") == len(harms(num_shards))
    assert "is missing from" not in log


@pytest.mark.parametrize("kind", ["other bytes", "ESTALE"])
def test_damage_that_only_another_rank_sees_is_transient(tmp_path, kind):
    ranks = results(only_rank_1, tmp_path, 3, 3, kind)
    root = tmp_path / "run/checkpoints"
    newest = root / checkpoint_name(NEWEST)
    words = {
        # Rank 0 has compared the files, too.
        "other bytes": f"rank 1 cannot read checkpoint {newest}: {shard(1)} does not agree with "
        "its SHA-256; rank 0 reads all its files as they were written",
        "ESTALE": f"loading checkpoint {newest}: {newest}/{shard(1)}: Stale file handle",
    }
    speaker = 0 if kind == "other bytes" else 1
    assert [is_transient for is_transient, _ in ranks] == [rank == speaker for rank in range(3)]
    assert words[kind] in ranks[speaker][1]
    assert sorted(path.name for path in root.iterdir()) == [
        "latest",
        checkpoint_name(OLDER),
        checkpoint_name(NEWEST),
    ]


def test_row_33_no_rank_of_an_old_attempt_writes_a_shard(tmp_path):
    results(superseded, tmp_path, 3, 3)
    assert list((tmp_path / "run/checkpoints").glob(".tmp-*")) == []
