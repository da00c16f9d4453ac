"""The causes that are recognised: how each shows itself in what was tried, and what to change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .harming import Ended
from .judge import Judgement

# A training may agree on a stop only every few steps, and end before that.
STEPS_ON = 3


@dataclass(frozen=True)
class Fault:
    """A fault of a training. is_shown: by one scenario, among all scenarios that were tried."""

    name: str
    what: str
    change: str
    is_shown: Callable[[Judgement, Sequence[Judgement]], bool]


def _handlers(start: Ended) -> set[bool]:
    """Return whether the ranks had a handler for SIGTERM at their last step: some, all or none."""
    return {process.steps[-1].has_handler for process in start.processes if process.steps}


def _has_no_handler(shown: Judgement, _: Sequence[Judgement]) -> bool:
    has_left = [start for start in shown.stopped if not start.was_killed]
    return not shown.saved and any(_handlers(start) == {False} for start in has_left)


def _has_some_handlers(shown: Judgement, _: Sequence[Judgement]) -> bool:
    return any(_handlers(start) == {False, True} for start in shown.stopped)


def _does_not_agree(shown: Judgement, judgements: Sequence[Judgement]) -> bool:
    """Return whether only a stop fails of which one rank hears later than the others."""
    in_steps = _in_steps(judgements)
    is_good = bool(in_steps) and not any(map(_is_killed, in_steps)) and in_steps[0].saved
    return _is_apart(shown) and is_good and (_is_killed(shown) or not shown.saved)


def _is_apart(shown: Judgement) -> bool:
    return any(each.kind == "stop apart" for each in shown.run.scenario.harms)


def _saves_nothing(shown: Judgement, judgements: Sequence[Judgement]) -> bool:
    if _does_not_agree(shown, judgements):
        return False
    has_left = [start for start in shown.stopped if not start.was_killed]
    return not shown.saved and any(_handlers(start) == {True} for start in has_left)


def _is_killed(shown: Judgement) -> bool:
    return any(start.was_killed for start in shown.stopped)


def _in_steps(judgements: Sequence[Judgement]) -> list[Judgement]:
    return [each for each in judgements if each.run.scenario.name == "stop in the middle"]


def _is_deaf(shown: Judgement, judgements: Sequence[Judgement]) -> bool:
    return (_is_killed(shown) and any(map(_is_killed, _in_steps(judgements)))) or any(
        ran_on(shown, start) for start in shown.stopped
    )


def ran_on(shown: Judgement, start: Ended) -> bool:
    """Return whether a warned training took steps up to its end, in place of a stop."""
    assert start.harmed_at is not None
    later = [process for each in shown.run.starts[start.number :] for process in each.processes]
    steps = [step for step in start.processes[0].steps if step.t > start.harmed_at]
    is_complete = start.code == 0 and not any(process.steps for process in later)
    return is_complete and len(steps) >= STEPS_ON


def _is_deaf_outside_of_steps(shown: Judgement, judgements: Sequence[Judgement]) -> bool:
    in_steps = _in_steps(judgements)
    is_here_only = bool(in_steps) and not any(map(_is_killed, in_steps))
    return _is_killed(shown) and is_here_only and not _is_apart(shown)


def _leaves_as_done(shown: Judgement, _: Sequence[Judgement]) -> bool:
    return any(leaves_as_done(shown, start) for start in shown.stopped)


def leaves_as_done(shown: Judgement, start: Ended) -> bool:
    """Return whether a warned training left with exit code 0 and no marker before its end."""
    went_on = any(
        process.steps
        for later in shown.run.starts
        if later.number > start.number
        for process in later.processes
    )
    return start.code == 0 and not start.marker and went_on


def _ignores_its_checkpoint(shown: Judgement, _: Sequence[Judgement]) -> bool:
    return shown.begins_again


def _is_half_written(shown: Judgement, _: Sequence[Judgement]) -> bool:
    starts = shown.run.starts
    at_save = any(each.harm and each.harm.moment.startswith(("save", "open")) for each in starts)
    fails_at_once = shown.failed is not None and not any(
        process.steps for process in shown.failed.processes
    )
    return at_save and fails_at_once


def _differs_in(name: str) -> Callable[[Judgement, Sequence[Judgement]], bool]:
    def is_shown(shown: Judgement, _: Sequence[Judgement]) -> bool:
        if not shown.divergence or not shown.difference or shown.begins_again:
            return False
        # A generator that begins again may draw the data, too: then both are named.
        first = shown.divergence.inputs[: 2 if shown.divergence.is_replayed else 1]
        return name in first

    return is_shown


FAULTS = (
    Fault(
        "no handler",
        "SIGTERM ends the ranks at once: they have no handler for it",
        "install one on every rank that sets a flag; after each step let all ranks agree whether "
        "one has it set, then save, and leave with an exit code other than 0",
        _has_no_handler,
    ),
    Fault(
        "handler on some ranks",
        "only some ranks have a handler for SIGTERM; the others die of it",
        "install the handler on every rank, and let all ranks agree on the step after which they "
        "stop",
        _has_some_handlers,
    ),
    Fault(
        "ranks do not agree",
        "a rank that hears of the stop one step later waits for ranks that have stopped",
        "after each step let all ranks agree whether one has the flag set, by an all_reduce",
        _does_not_agree,
    ),
    Fault(
        "stops without a save",
        "the ranks stop when asked, and save nothing then",
        "save before they leave; a library may have a flag for it",
        _saves_nothing,
    ),
    Fault(
        "does not stop",
        "the training goes on after SIGTERM, in its steps, too",
        "let the handler set a flag; after each step let all ranks agree whether one has it set, "
        "then save, and leave with an exit code other than 0",
        _is_deaf,
    ),
    Fault(
        "flag read in steps only",
        "the flag that SIGTERM sets is not read there before the grace is over",
        "read it in the start-up, between the batches of an evaluation, and after a save, too",
        _is_deaf_outside_of_steps,
    ),
    Fault(
        "exit code 0 before the end",
        "a stopped training leaves with exit code 0, as a complete one does",
        "leave with another code, such as 1, or use the kit's configs/own_script/kit_stop.py, "
        "whose marker says which",
        _leaves_as_done,
    ),
    Fault(
        "checkpoint is not loaded",
        "the later start begins at the first step, although there is a checkpoint",
        "load the newest checkpoint at the start; if a flag does that, give it for later starts: "
        "--again '--resume {newest:*.pt}'",
        _ignores_its_checkpoint,
    ),
    Fault(
        "saved to the final name",
        "a kill in a save leaves a half-written checkpoint, on which the next start fails",
        "save under a temporary name, then os.replace() it to the final one",
        _is_half_written,
    ),
    Fault(
        "optimizer not saved",
        "the optimizer's state, such as momentum, is not what it was",
        "save optimizer.state_dict(), and load it after the optimizer exists",
        _differs_in("optimizer"),
    ),
    Fault(
        "scheduler not saved",
        "the learning rate is not what it was",
        "save scheduler.state_dict(), and load it",
        _differs_in("lr"),
    ),
    Fault(
        "loss scale not saved",
        "the loss scale is not what it was",
        "save scaler.state_dict(), and load it",
        _differs_in("scale"),
    ),
    Fault(
        "position in the data not kept",
        "the data goes on at another sample: the sampler does not know the epoch, or the position",
        "call sampler.set_epoch(epoch) in each epoch, and skip the samples that were taken",
        _differs_in("position"),
    ),
    Fault(
        "random state not saved",
        "the random numbers are not those of the undisturbed run",
        "save and restore the states of torch, numpy and random on each rank, or seed them from "
        "the step; a DataLoader draws from torch's when it begins, unless it has a generator",
        _differs_in("random"),
    ),
)


def recognised(shown: Judgement, judgements: Sequence[Judgement]) -> list[Fault]:
    """Return the causes that a scenario shows."""
    return [cause for cause in FAULTS if cause.is_shown(shown, judgements)]
