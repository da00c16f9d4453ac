"""As one of several ranks: save under each strategy and number of ranks, and load that under each.

    python -c "from tests.rooms.sharded import meshes; meshes.main()" FOLDER

One process that has imported torch forks the ranks of each world, one world after the other: first
all save, then all load. FOLDER/found.json has [saved as, loaded as, digests of both].
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.records.frozen import SpecChange
from slurm_job_kit.jobs.rundir import RunDir, write_json
from slurm_job_kit.jobs.spec import Checkpoint, Launch, Log, Spec, Train
from slurm_job_kit.trainer.checkpoint.digest import optimizer_sha256, weights_sha256
from slurm_job_kit.trainer.checkpoint.setup import spec_sha256
from slurm_job_kit.trainer.events import Events
from slurm_job_kit.trainer.loop import Loop
from slurm_job_kit.trainer.process.context import DistributedContext
from slurm_job_kit.trainer.process.run_handle import RankContext, RunHandle
from slurm_job_kit.trainer.process.step_agreement import StepAgreement
from slurm_job_kit.trainer.run import prepare
from slurm_job_kit.trainer.stop import StopSignal
from tests.local import forked_ranks
from tests.local.forked_ranks import CPU

STEPS = 3


class Mesh(NamedTuple):
    """A number of ranks, and how they share the state."""

    ranks: int
    strategy: str

    @property
    def name(self) -> str:
        """Such as fsdp-3; of hsdp copies and shards."""
        return f"{self.strategy}-{'2x2' if self.strategy == 'hsdp' else self.ranks}"


MESHES = [
    *(Mesh(ranks, "ddp") for ranks in (1, 2)),
    *(Mesh(ranks, "fsdp") for ranks in (2, 3, 4)),
    Mesh(4, "hsdp"),
]
WORLDS = sorted({mesh.ranks for mesh in MESHES})


def spec_of(mesh: Mesh, steps: int) -> Spec:
    """The same training on each mesh."""
    sharding = {"strategy": mesh.strategy}
    if mesh.strategy in ("fsdp", "hsdp"):
        sharding["shard_modules"] = ["Conv2d"]  # type: ignore[assignment]
    if mesh.strategy == "hsdp":
        sharding["shard_size"] = 2  # type: ignore[assignment]
    train = Train(
        model="tests.local.stoppable:net",
        model_args={"width": 11},
        dataset="tests.local.stoppable:in_memory",
        max_steps=steps,
        micro_batch_size=12,
        global_batch_size=12,
        optimizer="adamw",
        lr=0.01,
        eval_every_epochs=None,
        **sharding,  # type: ignore[arg-type]
    )
    launch, log = Launch(stop_check_steps=1), Log(every_steps=1000)
    return Spec(launch=launch, train=train, log=log, checkpoint=Checkpoint(best=None))


def attempt(place: DistributedContext, mesh: Mesh, run: RunDir, number: int, steps: int) -> Loop:
    """A loop that has loaded the newest checkpoint of the run, whatever mesh saved it."""
    handle = RunHandle(run, spec_of(mesh, steps), number)
    if place.is_first:
        run.attempt(number).path.mkdir(parents=True)
        run.checkpoints.mkdir(exist_ok=True)
        write_json(run.owner, {"attempt": number})
        # What `resume` records where a user confirms another strategy.
        records.append(run.changes, SpecChange(0.0, (), spec_sha256(handle)))
    dist.barrier()
    return prepare(RankContext(handle, place, CPU, Events(place.rank)))


def digests(loop: Loop) -> list[str]:
    """SHA-256 of weights and of the optimizer's state."""
    return [weights_sha256(loop.replica), optimizer_sha256(loop.replica)]


def save(place: DistributedContext, mesh: Mesh, folder: Path) -> list[str]:
    """Train some steps, save; return the digests."""
    loop = attempt(place, mesh, RunDir(folder / mesh.name), 1, STEPS)
    loop.run(StepAgreement(StopSignal(), 1, CPU))
    loop.close()
    return digests(loop)


def load(place: DistributedContext, mesh: Mesh, saved: Mesh, folder: Path) -> list[str]:
    """Load what another mesh has saved; return the digests, and do one more step."""
    number = 2 + MESHES.index(mesh)
    loop = attempt(place, mesh, RunDir(folder / saved.name), number, STEPS + 1)
    digest_lines = digests(loop)
    # Not saved: the next mesh loads the same state. A broken state often fails in a step only.
    loop.checkpoints.save = lambda *_: None  # type: ignore[method-assign]
    loop.run(StepAgreement(StopSignal(), 1, CPU))
    assert loop.state.global_step == STEPS + 1

    loop.close()
    return digest_lines


def be_rank(rank: int, world_size: int, port: int, folder: Path, is_saving: bool) -> None:
    """Save, or load everything, as one rank of a world; write what rank 0 found."""
    context = forked_ranks.join(rank, world_size, port)
    results: dict[str, Any] = {}
    for mesh in (mesh for mesh in MESHES if mesh.ranks == world_size):
        if is_saving:
            results[mesh.name] = save(context, mesh, folder)
        else:
            results[mesh.name] = {each.name: load(context, mesh, each, folder) for each in MESHES}
    if context.is_first:
        write_json(folder / f"{'saved' if is_saving else 'loaded'}-{world_size}.json", results)
    dist.barrier()
    os._exit(0)


def main() -> None:
    """Fork the ranks of each world, twice."""
    folder = Path(sys.argv[1])
    for is_saving in (True, False):
        for world_size in WORLDS:
            forked_ranks.fork(be_rank, world_size, folder, is_saving)
