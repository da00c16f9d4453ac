"""G4: a save of a large state, and the load of the next attempt, one rank."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from slurm_job_kit.jobs.contract.spec import Checkpoint, Spec
from slurm_job_kit.trainer.process.run_handle import RankContext
from slurm_job_kit.trainer.training.run import prepare
from tests.bench.checkpoint import load
from tests.bench.place import Place, StepClock, saves_of, wait_for_device
from tests.bench.rounds import Figure, sized, timed

LAYERS, WIDTH = sized(((17, 33), 2048), ((2, 4), 128))  # 10 and 20 GB with AdamW
GPT_ARGS = {"n_head": 16, "n_embd": WIDTH}


def measure(place: Place) -> Iterator[Figure]:
    """Seconds of two saves, the first of which allocates host memory, and of a load.

    The load builds data and model, checks the SHA-256 and runs a throw-away pass. The files are
    still in the page cache, as they are on a node whose rank was killed.
    """
    for num_layers in LAYERS:
        train = replace(load.SPEC.train, model_args={"n_layer": num_layers, **GPT_ARGS})
        spec = Spec(
            train=replace(train, max_steps=2),
            checkpoint=Checkpoint(every_steps=1, keep_last=1, best=None),
        )
        run = place.train(spec, StepClock(0))
        sizes = [each.stat().st_size for each in run.checkpoints.glob("step-*/*.safetensors")]
        what = f"{sum(sizes) / 1e9:.3g} GB of state"
        first, second = saves_of(run)
        yield Figure(f"{what}: stall of the first save", first["stall_s"], None, unit="s")
        yield Figure(f"{what}: stall of a later save", second["stall_s"], None, unit="s")
        yield Figure(f"{what}: begin of a save to its commit", second["seconds"], None, unit="s")
        load_s = round(timed(partial(_load, place.context(spec, run, 2))), 3)
        yield Figure(f"{what}: load at a restart", load_s, None, unit="s")
        shutil.rmtree(run.path)


def _load(context: RankContext) -> None:
    loop = prepare(context)
    wait_for_device()
    assert loop.state.global_step == loop.train.max_steps
    loop.close()
