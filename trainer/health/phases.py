"""The phases of a rank's start-up, in their order, and how long each may take.

The training loop begins after the last of them. There the watchdog learns its limit from the
steps, and `launch.hang_timeout_s` sets it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

# Below torch's 600 s, after which gloo and NCCL end a rank without naming the rank at fault.
MAX_LIMIT_S = 540.0
# A configured limit is for steps. A start-up reads a cold file system, which steps do not.
START_UP_FACTOR = 10
MIN_START_UP_LIMIT_S = 30.0

Beat = Callable[[str, int], None]  # arguments: the part of the training that begins, the step

DEVICE_TEST = "device test"
IN_LOOP = "training"


class Phase(NamedTuple):
    """One phase. `end_event` is the event in the rank's timeline that ends it."""

    name: str
    end_event: str
    limit_s: float


START_UP = (
    Phase("import", "import", 300.0),
    # Also waits for the slowest import of all ranks.
    Phase("rendezvous", "rendezvous", 420.0),
    # The two phases of the preflight. If a rank does not answer in them, the others report it after
    # 5 s. These limits apply if most ranks do not answer, or if the store does not.
    Phase(DEVICE_TEST, "device_test", 120.0),
    Phase("all-reduce test", "preflight", 120.0),
    # In a launch by hand rank 0 freezes the config and opens an attempt in this phase.
    Phase("init", "init", 300.0),
    Phase("data", "data", MAX_LIMIT_S),
    # The first forward pass is in it, and what it compiles.
    Phase("model", "model", MAX_LIMIT_S),
    Phase("restore", "loaded", MAX_LIMIT_S),
    Phase("first step", "first_step", MAX_LIMIT_S),
)
# A configured limit does not shorten them: their time does not depend on the steps, and a slow
# device would count as a bad node.
UNSCALED = (DEVICE_TEST, "all-reduce test")
# The slowest rank's import, and the time to connect.
RENDEZVOUS_EXTRA_S = 120.0
# In these phases a rank that does not wait for its peers may go on for longer: a data set may
# build an index, a model may be compiled. A rank that waits for a peer keeps the phase's limit.
LONG_PHASES = ("data", "model", "restore", "first step")
WORK_LIMIT_S = 1800.0
NAMES = tuple(phase.name for phase in START_UP)
LIMITS_S = {phase.name: phase.limit_s for phase in START_UP}


def start_up_limit_s(phase: str, hang_timeout_s: int | str) -> float:
    """Return how many seconds a start-up phase may take; a configured limit only shortens it."""
    if hang_timeout_s == "auto" or phase in UNSCALED:
        return LIMITS_S[phase]
    configured_s = max(START_UP_FACTOR * float(hang_timeout_s), MIN_START_UP_LIMIT_S)
    configured_s += RENDEZVOUS_EXTRA_S if phase == "rendezvous" else 0.0
    return min(configured_s, LIMITS_S[phase])


def may_go_on(phase: str, seconds: float, hang_timeout_s: int | str, is_waiting: bool) -> bool:
    """Return whether a rank over its limit may go on: it works, and waits for no other rank."""
    is_long = phase in LONG_PHASES and hang_timeout_s == "auto"
    return is_long and not is_waiting and seconds <= WORK_LIMIT_S


def order_of(phase: str) -> int:
    """Return the index of a phase; everything in the training loop comes after all of them."""
    return NAMES.index(phase) if phase in NAMES else len(NAMES)


def phase_after(event: str) -> str:
    """Return the phase that begins with an event of the timeline; "" if the event ends none."""
    ends = [phase.end_event for phase in START_UP]
    return (*NAMES, IN_LOOP)[ends.index(event) + 1] if event in ends else ""
