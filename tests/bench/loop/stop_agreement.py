"""B14: what the agreement of the ranks on a stop costs, two ranks."""

from dataclasses import replace
from functools import partial

from slurm_job_kit.jobs.contract.spec import Launch
from tests.bench.loop.overhead import WARM_UP_STEPS, spec_without_saves
from tests.bench.place import Place
from tests.bench.rounds import Figure, Target, interleaved, milliseconds, ratio

NUM_STEPS = 800
NEVER = 1_000_000  # steps between two agreements


def measure(place: Place) -> list[Figure]:
    """Seconds of the tiny MLP's steps with agreements at the automatic interval / with none."""
    end = WARM_UP_STEPS + NUM_STEPS
    automatic = spec_without_saves(place, {"model": "mlp"}, end)
    never = replace(automatic, launch=Launch(stop_check_steps=NEVER))

    variants = {"automatic": automatic, "never": never}
    times = interleaved(
        {name: partial(place.seconds, each, WARM_UP_STEPS, end) for name, each in variants.items()}
    )
    steps = milliseconds(times["never"], NUM_STEPS)
    what = f"tiny MLP, stop agreement at the automatic interval / none ({steps} a step)"
    return [ratio(what, times["automatic"], times["never"], Target("<=", 1.02))]
