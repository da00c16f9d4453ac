"""B8: how long a durable checkpoint interrupts the training."""

from slurm_job_kit.trainer.training.loop import Loop
from slurm_job_kit.trainer.training.run import prepare
from tests.bench.checkpoint import wide
from tests.bench.place import Place
from tests.bench.rounds import Figure, Target, interleaved, milliseconds, ratio, timed

STEPS_BEFORE = 10  # before the first save; by default it comes later


def measure(place: Place) -> list[Figure]:
    """Seconds until the training continues: torch.save or DCP's async_save / the kit's save.

    No save is in flight when the next one begins: `back_to_back` has that. The first save of a
    run is that of a new run in each round.
    """
    spec = wide.spec_of(1000, None)
    plain, dcp = wide.TorchSave(place.folder), wide.Dcp(place.folder)

    def begun() -> Loop:
        """A training that has done some steps; its memory for saves is allocated after one."""
        loop = prepare(place.context(spec))
        wide.do_steps(loop, 1)
        loop.checkpoints.allocate(loop.replica, loop.state)
        wide.do_steps(loop, STEPS_BEFORE)
        return loop

    def kit(loop: Loop) -> float:
        loop.state.global_step += 1
        took_s = timed(lambda: loop.checkpoints.save(loop.replica, loop.state))
        loop.checkpoints.finish(lambda: None)
        return took_s

    def first() -> float:
        loop = begun()
        took_s = kit(loop)
        loop.close()
        return took_s

    def by_dcp() -> float:
        took_s = timed(lambda: dcp.save(loop.replica))
        dcp.finish()
        return took_s

    loop = begun()
    variants = {
        "torch.save": lambda: timed(lambda: plain.save(loop.replica)),
        "dcp": by_dcp,
        "kit": lambda: kit(loop),
        "first": first,
    }
    times = interleaved(variants)
    loop.close()
    size = f"{plain.path.stat().st_size / 1e6:.0f} MB"

    def figure(peer: str, own: str, what: str, target: Target | None = None) -> Figure:
        stalls = f"{milliseconds(times[peer])} / {milliseconds(times[own])}"
        return ratio(f"{size}: {what} ({stalls})", times[peer], times[own], target)

    return [
        figure("torch.save", "kit", "torch.save, fsync, rename / kit's stall", Target(">=", 9)),
        figure("torch.save", "first", "the same / kit's stall of the first save of a run"),
        figure("dcp", "kit", "DCP async_save's stall / kit's"),
    ]
