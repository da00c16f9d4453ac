"""The causes that are recognised: how each shows itself in what was tried, and what to change."""

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from .judge import Tried

# The questions whose answer a cause may explain.
STOPS, SAVES, CONTINUES = "stops when asked", "saves when asked", "continues"
NEWEST = "uses the newest whole checkpoint"
BITS, SAMPLES = "ends with the same bits", "takes the same samples"


class Fault(NamedTuple):
    """A fault of a training. questions: whose answer may be no for it. is_shown: by a scenario."""

    name: str
    questions: tuple[str, ...]
    what: str
    change: str
    is_shown: Callable[[Tried], bool]


def _has_no_handler(shown: Tried) -> bool:
    """Return whether a stop was not saved, and a rank had no handler for SIGTERM at its end."""
    processes = [each for start in shown.stopped for each in start.processes if each.steps]
    return not shown.saved and not all(each.steps[-1].has_handler for each in processes)


def _is_deaf(shown: Tried) -> bool:
    return (shown.is_killed or shown.ran_on) and not _has_no_handler(shown)


def _saves_nothing(shown: Tried) -> bool:
    has_time = any(not start.was_killed for start in shown.stopped)
    return has_time and not (shown.saved or _has_no_handler(shown) or _is_deaf(shown))


def _is_torn(shown: Tried) -> bool:
    """Return whether a kill in a save leaves an older state, parts of two, or half a file."""
    is_half = shown.is_partial or shown.disk.endswith(("is empty", "is half written"))
    is_unread = shown.failed is not None and not shown.failed.has_steps
    is_taken = shown.is_partial and shown.is_off and not shown.redone  # a file of it is missing
    return bool(shown.lost) or shown.is_mixed or (is_half and is_unread) or is_taken


def _leaves_out(shown: Tried) -> bool:
    """Return whether a start goes on later in the data, or not at all, and so ends early."""
    return shown.ends_early and ((shown.shift or 0) > 0 or not shown.starts[-1].has_steps)


def _differs_in(name: str, shown: Tried) -> bool:
    is_other = shown.begins_again or _is_torn(shown) or _leaves_out(shown)
    if not shown.divergence or not shown.difference or is_other:
        return False
    # A generator that begins again may draw the data, too: then both are named.
    return name in shown.divergence.inputs[: 2 if shown.divergence.is_replayed else 1]


# What is not restored: its name in the first step that differs, the object that has it, its words.
_STATES = (
    ("optimizer", "optimizer", "the optimizer's state, such as momentum,"),
    ("lr", "scheduler", "the learning rate"),
    ("scale", "scaler", "the loss scale"),
)
_AGREE = "let all ranks agree whether one has it set, then save, and exit with a code other than 0"
FAULTS = (
    Fault(
        "no handler",
        (SAVES,),
        "SIGTERM ends a rank at once: it has no handler for it",
        f"install one on every rank that sets a flag; after each step {_AGREE}",
        _has_no_handler,
    ),
    Fault(
        "stops without a save",
        (SAVES,),
        "the ranks stop when asked, but save nothing",
        "let all ranks agree after which step they stop and save; a library may have a flag for it",
        _saves_nothing,
    ),
    Fault(
        "does not stop",
        (STOPS, SAVES),
        "the training goes on after SIGTERM, or its ranks wait for one another",
        f"set a flag in the handler; after each step and each batch of an evaluation {_AGREE}",
        _is_deaf,
    ),
    Fault(
        "exit code 0 before the end",
        (STOPS,),
        "a stopped training exits with code 0, as a complete one does",
        "exit with another code, such as 1, or use the kit's configs/examples/kit_stop.py",
        attrgetter("leaves_as_done"),
    ),
    Fault(
        "checkpoint is not loaded",
        (CONTINUES, BITS),
        "the later start begins at the first step, although there is a checkpoint",
        "load the newest one at the start; if a flag does that: --again '--resume {newest:*.pt}'",
        attrgetter("begins_again"),
    ),
    Fault(
        "saved to the final name",
        (CONTINUES, NEWEST, BITS, SAMPLES),
        "a kill in a save leaves no whole checkpoint where the next start looks for one",
        "save all of a step in one file under another name, then os.replace() it to the final one; "
        "or in a new folder, whose name stands in a file that is replaced last, after a barrier",
        _is_torn,
    ),
    Fault(
        "an older checkpoint is loaded",
        (NEWEST,),
        "a start takes another checkpoint than the newest",
        "as text epoch_9 comes after epoch_10: choose it by its number, and count on from there",
        attrgetter("passed_over"),
    ),
    Fault(
        "steps left out",
        (CONTINUES, BITS, SAMPLES),
        "the steps of an epoch are not taken: the loader's state is that of an epoch's end",
        "at its end save the number of this epoch, or the state of a loader that begins the next; "
        "and a start must not take each checkpoint for that of a complete training",
        _leaves_out,
    ),
    *(
        Fault(
            f"{owner} not saved",
            (BITS, SAMPLES),
            f"{what} is not what it was",
            f"save {owner}.state_dict() with the weights of the same step, and load it last",
            partial(_differs_in, state),
        )
        for state, owner, what in _STATES
    ),
    Fault(
        "position in the data not kept",
        (BITS, SAMPLES),
        "the data continue at another sample: the sampler does not know the epoch, or the position",
        "call sampler.set_epoch(epoch) in each epoch, and skip the samples of it that were taken",
        partial(_differs_in, "position"),
    ),
    Fault(
        "random state not saved",
        (BITS, SAMPLES),
        "the random numbers are not those of the undisturbed run",
        "save and restore the states of torch, numpy and random on each rank, or seed them from "
        "the step; a DataLoader draws its own and its workers' when it begins",
        partial(_differs_in, "random"),
    ),
)


def recognised(shown: Tried) -> list[Fault]:
    return [cause for cause in FAULTS if cause.is_shown(shown)]
