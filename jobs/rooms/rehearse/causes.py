"""The causes that are recognised: how each shows itself in what was tried, and what to change."""

from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from .judge import Judgement

# The questions whose answer a cause may explain.
STOPS, SAVES, CONTINUES = "stops when asked", "saves when asked", "continues"
BITS, SAMPLES = "ends with the same bits", "takes the same samples"


class Fault(NamedTuple):
    """A fault of a training. questions: whose answer may be no for it. is_shown: by a scenario."""

    name: str
    questions: tuple[str, ...]
    what: str
    change: str
    is_shown: Callable[[Judgement], bool]


def _handlers(shown: Judgement, is_left: bool = True) -> list[set[bool]]:
    """Return for each warned start, or each that was not killed, which ranks had a handler.

    For SIGTERM, at their last step: some, all or none.
    """
    starts = [start for start in shown.stopped if not (is_left and start.was_killed)]
    return [
        {process.steps[-1].has_handler for process in start.processes if process.steps}
        for start in starts
    ]


def _has_no_handler(shown: Judgement) -> bool:
    return not shown.saved and {False} in _handlers(shown)


def _has_some_handlers(shown: Judgement) -> bool:
    return {False, True} in _handlers(shown, is_left=False)


def _does_not_agree(shown: Judgement) -> bool:
    """Return whether only a stop fails of which one rank hears later than the others."""
    middle = shown.middle
    is_good = middle is not None and not middle.is_killed and middle.saved
    return _is_apart(shown) and is_good and (shown.is_killed or not shown.saved)


def _is_apart(shown: Judgement) -> bool:
    return any(each.kind == "stop apart" for each in shown.run.scenario.harms)


def _saves_nothing(shown: Judgement) -> bool:
    return not _does_not_agree(shown) and not shown.saved and {True} in _handlers(shown)


def _is_deaf(shown: Judgement) -> bool:
    is_deaf_in_steps = shown.middle is not None and shown.middle.is_killed
    return (shown.is_killed and is_deaf_in_steps) or shown.ran_on


def _is_deaf_outside(shown: Judgement) -> bool:
    is_here_only = shown.middle is not None and not shown.middle.is_killed
    return shown.is_killed and is_here_only and not _is_apart(shown)


def _is_half_written(shown: Judgement) -> bool:
    harms = [each.harm for each in shown.run.starts if each.harm]
    at_save = any(harm.moment.startswith(("save", "open")) for harm in harms)
    failed = shown.failed
    return at_save and failed is not None and not any(each.steps for each in failed.processes)


def _differs_in(name: str) -> Callable[[Judgement], bool]:
    def is_shown(shown: Judgement) -> bool:
        if not shown.divergence or not shown.difference or shown.begins_again:
            return False
        # A generator that begins again may draw the data, too: then both are named.
        first = shown.divergence.inputs[: 2 if shown.divergence.is_replayed else 1]
        return name in first

    return is_shown


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
        "saved to the final name",
        (CONTINUES, BITS),
        "a kill in a save leaves a half-written checkpoint, on which the next start fails",
        "save under a temporary name, then os.replace() it to the final one",
        _is_half_written,
    ),
    Fault(
        "optimizer not saved",
        (BITS, SAMPLES),
        "the optimizer's state, such as momentum, is not what it was",
        "save optimizer.state_dict(), and load it after the optimizer exists",
        _differs_in("optimizer"),
    ),
    Fault(
        "scheduler not saved",
        (BITS, SAMPLES),
        "the learning rate is not what it was",
        "save scheduler.state_dict(), and load it",
        _differs_in("lr"),
    ),
    Fault(
        "loss scale not saved",
        (BITS, SAMPLES),
        "the loss scale is not what it was",
        "save scaler.state_dict(), and load it",
        _differs_in("scale"),
    ),
    Fault(
        "position in the data not kept",
        (BITS, SAMPLES),
        "the data continue at another sample: the sampler does not know the epoch, or the position",
        "call sampler.set_epoch(epoch) in each epoch, and skip the samples that were taken",
        _differs_in("position"),
    ),
    Fault(
        "random state not saved",
        (BITS, SAMPLES),
        "the random numbers are not those of the undisturbed run",
        "save and restore the states of torch, numpy and random on each rank, or seed them from "
        "the step; a DataLoader draws from torch's when it begins, unless it has a generator",
        _differs_in("random"),
    ),
)


def recognised(shown: Judgement) -> list[Fault]:
    """Return the causes that a scenario shows."""
    return [cause for cause in FAULTS if cause.is_shown(shown)]
