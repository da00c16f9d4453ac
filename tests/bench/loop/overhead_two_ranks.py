"""B4 at two ranks: the training of a small model, against a bare DDP loop of two ranks."""

from tests.bench.loop.overhead import Case, figures
from tests.bench.place import Place
from tests.bench.rounds import Figure, Target

# A step of about a millisecond: what the kit does in each step counts most here.
SMALL = Case(
    "MLP of 128, two ranks",
    {"model": "mlp", "model_args": {"hidden": [128]}},
    1500,
    Target("<=", 1.15),
    Target("<=", 1.05),
)


def measure(place: Place) -> list[Figure]:
    """Seconds of as many steps of either, as `overhead.measure` has them at one rank."""
    return figures(place, [SMALL])
