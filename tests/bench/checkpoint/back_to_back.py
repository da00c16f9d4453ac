"""B8: a training that always has a checkpoint in flight."""

from functools import partial

from slurm_job_kit.jobs.contract.spec import Spec
from slurm_job_kit.trainer.training.loop import Loop
from slurm_job_kit.trainer.training.run import prepare
from tests.bench.checkpoint import wide
from tests.bench.place import Place, StepClock, saves_of
from tests.bench.rounds import Figure, Target, interleaved, milliseconds, ratio

FIRST, EVERY_STEPS, NUM_STEPS = 5, 5, 40
ROUNDS = 3


class _Saving(StepClock):
    """Saves by another library at the beginning of every fifth step."""

    def __init__(self, loop: Loop, by: wide.TorchSave | wide.Dcp) -> None:
        super().__init__(FIRST)
        self._loop, self._by, self.saves = loop, by, 0

    def begin(self, step: int) -> None:
        super().begin(step)
        if step > FIRST and step % EVERY_STEPS == 0:
            self._by.save(self._loop.replica)
            self.saves += 1

    def end(self) -> None:
        self._by.finish()
        super().end()


def measure(place: Place) -> list[Figure]:
    """Seconds of a training that asks for a save every few steps / of one without.

    All of them end with the kit's last commit. The kit postpones a save while one is in flight,
    so it does fewer than the others, which wait.
    """
    without = wide.spec_of(NUM_STEPS, None)
    saves: dict[str, int] = {}

    def kit(spec: Spec, name: str) -> float:
        clock = StepClock(FIRST)
        run = place.train(spec, clock)
        saves[name] = len(saves_of(run)) - 1  # without the last one, which all have
        return clock.seconds

    def rival(by: wide.TorchSave | wide.Dcp, name: str) -> float:
        context = place.context(without)
        loop = prepare(context)
        clock = _Saving(loop, by)
        place.run(context, loop, clock)
        saves[name] = clock.saves
        return clock.seconds

    with_saves = wide.spec_of(NUM_STEPS, EVERY_STEPS)
    variants = {
        "without": partial(kit, without, "without"),
        "kit": partial(kit, with_saves, "kit"),
        "torch.save": partial(rival, wide.TorchSave(place.folder), "torch.save"),
        "DCP async_save": partial(rival, wide.Dcp(place.folder), "DCP async_save"),
    }
    times = interleaved(variants, ROUNDS, warm_up=0)  # each is a whole training
    steps = milliseconds(times["without"], NUM_STEPS - FIRST)
    size = f"{wide.MEGABYTES} MB, a step of {steps}"

    def figure(name: str, target: Target | None = None) -> Figure:
        what = f"{size}: {name} asked each {EVERY_STEPS} steps, {saves[name]} saves / none"
        return ratio(what, times[name], times["without"], target)

    return [figure("kit", Target("<=", 1.3)), figure("torch.save"), figure("DCP async_save")]
