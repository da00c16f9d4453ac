"""The causes that are recognised: how each shows itself in what was tried, and what to change."""

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from .judge import Tried

# The questions whose answer a cause may explain.
STOPS, SAVES, CONTINUES = "stops when asked", "saves when asked", "continues"
BITS, SAMPLES = "ends with the same bits", "takes the same samples"


class Fault(NamedTuple):
    """A fault of a training. questions: whose answer may be no for it. is_shown: by a scenario."""

    name: str
    questions: tuple[str, ...]
    what: str
    change: str
    is_shown: Callable[[Tried], bool]


def _handlers(shown: Tried, also_killed: bool = False) -> list[set[bool]]:
    """Return for each warned start, but killed ones, whether its ranks had a handler for SIGTERM.

    At their last step: some, all or none.
    """
    starts = [start for start in shown.stopped if also_killed or not start.was_killed]
    processes = ([each for each in start.processes if each.steps] for start in starts)
    return [{process.steps[-1].has_handler for process in of_start} for of_start in processes]


def _has_no_handler(shown: Tried) -> bool:
    return not shown.saved and {False} in _handlers(shown)


def _has_some_handlers(shown: Tried) -> bool:
    return {False, True} in _handlers(shown, also_killed=True)


def _does_not_agree(shown: Tried) -> bool:
    """Return whether only a stop fails of which one rank hears later than the others."""
    is_good = shown.middle is not None and not shown.middle.is_killed and shown.middle.saved
    return _is_apart(shown) and is_good and (shown.is_killed or not shown.saved)


def _is_apart(shown: Tried) -> bool:
    return any(each.kind == "stop apart" for each in shown.scenario.harms)


def _saves_nothing(shown: Tried) -> bool:
    return not _does_not_agree(shown) and not shown.saved and {True} in _handlers(shown)


def _is_deaf(shown: Tried) -> bool:
    is_deaf_in_steps = shown.middle is not None and shown.middle.is_killed
    return (shown.is_killed and is_deaf_in_steps) or shown.ran_on


def _is_deaf_outside(shown: Tried) -> bool:
    is_here_only = shown.middle is not None and not shown.middle.is_killed
    return shown.is_killed and is_here_only and not _is_apart(shown)


def _is_half_written(shown: Tried) -> bool:
    is_half = shown.disk.endswith(("is empty", "is half written"))
    return is_half and shown.failed is not None and not shown.failed.has_steps


def _differs_in(name: str, shown: Tried) -> bool:
    if not shown.divergence or not shown.difference or shown.begins_again or shown.is_mixed:
        return False
    # A generator that begins again may draw the data, too: then both are named.
    return name in shown.divergence.inputs[: 2 if shown.divergence.is_replayed else 1]


# What is not restored: its name in the first step that differs, its fault, what to change.
_NOT_RESTORED = (
    (
        "optimizer",
        "optimizer not saved",
        "the optimizer's state, such as momentum, is not what it was",
        "save optimizer.state_dict() with the weights of the same step, and load it last",
    ),
    (
        "lr",
        "scheduler not saved",
        "the learning rate is not what it was",
        "save scheduler.state_dict() with the weights of the same step, and load it last",
    ),
    (
        "scale",
        "loss scale not saved",
        "the loss scale is not what it was",
        "save scaler.state_dict() with the weights of the same step, and load it last",
    ),
    (
        "position",
        "position in the data not kept",
        "the data continue at another sample: the sampler does not know the epoch, or the position",
        "call sampler.set_epoch(epoch) in each epoch, and skip the samples of it that were taken",
    ),
    (
        "random",
        "random state not saved",
        "the random numbers are not those of the undisturbed run",
        "save and restore the states of torch, numpy and random on each rank, or seed them from "
        "the step; a DataLoader draws from torch's when it begins, unless it has a generator",
    ),
)
FAULTS = (
    Fault(
        "no handler",
        (SAVES,),
        "SIGTERM ends the ranks at once: they have no handler for it",
        "install one on every rank that sets a flag; after each step let all ranks agree whether "
        "one has it set, then save, and leave with an exit code other than 0",
        _has_no_handler,
    ),
    Fault(
        "handler on some ranks",
        (SAVES,),
        "only some ranks have a handler for SIGTERM; the others die of it",
        "install the handler on every rank, and let all ranks agree on the step after which they "
        "stop",
        _has_some_handlers,
    ),
    Fault(
        "ranks do not agree",
        (STOPS, SAVES),
        "a rank that gets the stop one step later waits for ranks that have stopped",
        "after each step let all ranks agree whether one has the flag set, by an all_reduce",
        _does_not_agree,
    ),
    Fault(
        "stops without a save",
        (SAVES,),
        "the ranks stop when asked, but save nothing",
        "save before they leave; a library may have a flag for it",
        _saves_nothing,
    ),
    Fault(
        "does not stop",
        (STOPS, SAVES),
        "the training continues after SIGTERM, even in its steps",
        "let the handler set a flag; after each step let all ranks agree whether one has it set, "
        "then save, and leave with an exit code other than 0",
        _is_deaf,
    ),
    Fault(
        "flag read in steps only",
        (STOPS, SAVES),
        "the grace ends before the flag that SIGTERM sets is read there",
        "also read it in the start-up, between the batches of an evaluation, and after a save",
        _is_deaf_outside,
    ),
    Fault(
        "exit code 0 before the end",
        (STOPS,),
        "a stopped training exits with code 0, as a complete one does",
        "exit with another code, such as 1, or use the kit's configs/own_script/kit_stop.py, "
        "whose marker says which",
        attrgetter("leaves_as_done"),
    ),
    Fault(
        "checkpoint is not loaded",
        (CONTINUES, BITS),
        "the later start begins at the first step, although there is a checkpoint",
        "load the newest checkpoint at the start; if a flag does that, give it for later starts: "
        "--again '--resume {newest:*.pt}'",
        attrgetter("begins_again"),
    ),
    Fault(
        "work lost in a save",
        (CONTINUES,),
        "at a moment of a save no whole checkpoint has the name that a start looks for",
        "do not remove the older one before: os.replace() the file, or give a new folder its name "
        "in a file that is replaced last",
        lambda shown: bool(shown.lost),
    ),
    Fault(
        "states are mixed",
        (CONTINUES, BITS, SAMPLES),
        "at a moment of a save some files are of the new checkpoint, and others of the older one",
        "save all of a step in one file, or in a new folder that gets its name last",
        attrgetter("is_mixed"),
    ),
    Fault(
        "saved to the final name",
        (CONTINUES, BITS),
        "a kill in a save leaves a half-written checkpoint, on which the next start fails",
        "save under another name that no start looks for, then os.replace() it to the final one",
        _is_half_written,
    ),
    *(
        Fault(name, (BITS, SAMPLES), what, change, partial(_differs_in, state))
        for state, name, what, change in _NOT_RESTORED
    ),
)


def recognised(shown: Tried) -> list[Fault]:
    """Return the causes that a scenario shows."""
    return [cause for cause in FAULTS if cause.is_shown(shown)]
