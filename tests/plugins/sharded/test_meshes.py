"""A checkpoint of any strategy and number of ranks is loaded by any other, bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.frozen import SpecChange
from slurm_job_kit.jobs.contract.spec import Checkpoint, Launch, Log, Spec, Train
from slurm_job_kit.trainer.checkpoint.digest import optimizer_sha256, weights_sha256
from slurm_job_kit.trainer.checkpoint.saved_state import spec_sha256
from slurm_job_kit.trainer.process.context import DistributedContext
from slurm_job_kit.trainer.process.run_handle import RankContext
from slurm_job_kit.trainer.process.step_agreement import StepAgreement
from slurm_job_kit.trainer.process.stop import StopSignal
from slurm_job_kit.trainer.training.run import prepare
from tests.core.ranks import CPU, context_of, join, results
from tests.core.run_files import write_json
from tests.parts import IMAGES

FSDP: dict[str, Any] = {"strategy": "fsdp", "shard_modules": ["Conv2d"]}
# Ranks, and how they share the state.
MESHES: dict[str, tuple[int, dict[str, Any]]] = {
    **{f"ddp-{ranks}": (ranks, {}) for ranks in (1, 2)},
    **{f"fsdp-{ranks}": (ranks, FSDP) for ranks in (2, 3, 4)},
    "hsdp-2x2": (4, FSDP | {"strategy": "hsdp", "shard_size": 2}),
}
STEPS = 3
TRAIN: dict[str, Any] = {
    **IMAGES,
    "model_args": {"channels": [11, 7]},
    "micro_batch_size": 12,
    "global_batch_size": 12,
    "optimizer": "adamw",
    "lr": 0.01,
    "eval_every_epochs": None,
}


def begin(folder: Path, train: Train, place: DistributedContext, attempt: int) -> RankContext:
    """Begin an attempt of the run in a folder, whatever mesh saved its checkpoint."""
    launch, log = Launch(stop_check_steps=1), Log(every_steps=1000)
    spec = Spec(launch=launch, train=train, log=log, checkpoint=Checkpoint(best=None))
    context = context_of(folder, spec, place, attempt)
    run = context.run.dir
    if place.is_first:
        run.attempt(attempt).path.mkdir(parents=True)
        run.checkpoints.mkdir(exist_ok=True)
        write_json(run.owner, {"attempt": attempt})
        # What `resume` records where a user confirms another strategy.
        records.append(run.changes, SpecChange(0.0, {}, spec_sha256(context.run)))
    dist.barrier()
    return context


def trained(folder: Path, mesh: str, place: DistributedContext, attempt: int, steps: int) -> Any:
    """The digests of weights and optimizer after the load and after the steps."""
    train = Train(**TRAIN, **MESHES[mesh][1], max_steps=steps)
    loop = prepare(begin(folder, train, place, attempt))
    digests = [(weights_sha256(loop.replica), optimizer_sha256(loop.replica))]
    if attempt > 1:  # not saved: the next mesh loads the same state
        loop.checkpoints.save = lambda *_: None  # type: ignore[method-assign]
    loop.run(StepAgreement(StopSignal(), 1, CPU))  # a broken state often fails in a step only
    assert loop.state.global_step == steps
    loop.close()
    return [*digests, (weights_sha256(loop.replica), optimizer_sha256(loop.replica))]


def in_worlds(folder: Path, rank: int) -> dict[Any, Any]:
    """Save as each mesh, then load each save as each mesh; return the digests."""
    found: dict[Any, Any] = {}
    for phase in ("save", "load"):
        (folder / phase).mkdir(exist_ok=True)
        for world_size in range(rank + 1, 5):
            place = join(folder / phase, rank, world_size)
            for number, (mesh, (ranks, _)) in enumerate(MESHES.items(), 2):
                if ranks == world_size and phase == "save":
                    found[mesh] = trained(folder / mesh, mesh, place, 1, STEPS)[1]
                elif ranks == world_size:
                    for saved in MESHES:
                        digests = trained(folder / saved, mesh, place, number, STEPS + 1)
                        found[mesh, saved] = digests[0]
            dist.barrier()
            dist.destroy_process_group()
    return found


@pytest.mark.slow
def test_each_save_is_loaded_by_each_mesh_with_the_same_bits(tmp_path):
    found = results(in_worlds, tmp_path, 4)[0]
    pairs = [(loaded, saved) for loaded in MESHES for saved in MESHES]
    assert [pair for pair in pairs if found[pair] != found[pair[1]]] == []
    assert len({found[mesh] for mesh in MESHES}) > 2  # so the digests tell states apart
