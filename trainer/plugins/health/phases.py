"""The phases of a rank's start-up, in their order, and how long a rank may be without progress."""

# Below the time limits of torch's collectives, which end a rank without naming the one at fault.
STEP_LIMIT_S = 540.0
# A data set may build an index, a model may be compiled.
START_UP_LIMIT_S = 1800.0
# A configured limit is for steps. A start-up reads a cold file system, which steps do not.
START_UP_FACTOR = 10
MIN_START_UP_LIMIT_S = 30.0

DEVICE_TEST = "device test"
NAMES = (
    "import",
    "rendezvous",  # also waits for the slowest import of all ranks
    DEVICE_TEST,
    "all-reduce test",
    "init",
    "data",
    "model",  # has the first forward pass, and what it compiles
    "restore",
    "first step",
)
BEFORE_DATA = NAMES[: NAMES.index("data")]  # later the user's code may wait for what it likes


def limit_s(phase: str, hang_timeout_s: int | str) -> float:
    """Return how many seconds without a beat are a hang, in a phase of the start-up or later.

    hang_timeout_s: as in the spec; a configured one only shortens the limits.
    """
    if hang_timeout_s == "auto":
        return START_UP_LIMIT_S if phase in NAMES else STEP_LIMIT_S
    step_s = min(float(hang_timeout_s), STEP_LIMIT_S)
    start_up_s = max(START_UP_FACTOR * step_s, MIN_START_UP_LIMIT_S)
    return min(start_up_s, START_UP_LIMIT_S) if phase in NAMES else step_s
