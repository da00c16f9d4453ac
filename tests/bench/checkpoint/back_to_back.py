"""B8: a training that always has a checkpoint in flight."""

from slurm_job_kit.jobs.contract.spec import Spec
from tests.bench.checkpoint import wide
from tests.bench.place import Place, StepClock, saves_of
from tests.bench.rounds import Figure, Target, interleaved, milliseconds, ratio

FIRST, EVERY_STEPS, NUM_STEPS = 5, 5, 40
ROUNDS = 3


def measure(place: Place) -> list[Figure]:
    """Seconds of a training that asks for a save every few steps / of one without.

    Both end with a commit. The kit postpones a save while one is in flight.
    """
    with_saves, without = (wide.spec_of(NUM_STEPS, every) for every in (EVERY_STEPS, None))
    num_saves = 0

    def trained(spec: Spec) -> float:
        nonlocal num_saves
        clock = StepClock(FIRST)
        run = place.train(spec, clock)
        num_saves = max(num_saves, len(saves_of(run)) - 1)  # without the last one, which all have
        return clock.seconds

    variants = {"without": lambda: trained(without), "with": lambda: trained(with_saves)}
    times = interleaved(variants, ROUNDS, warm_up=0)  # each is a whole training
    steps = milliseconds(times["without"], NUM_STEPS - FIRST)
    asked = f"asked each {EVERY_STEPS} steps, {num_saves} saves / none"
    what = f"{wide.MEGABYTES} MB, a step of {steps}: {asked}"
    return [ratio(what, times["with"], times["without"], Target("<=", 1.3))]
