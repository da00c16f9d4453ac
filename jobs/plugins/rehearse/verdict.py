"""The questions about a training and their answers, as a table and as JSON."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...base.console import quantity
from .causes import BITS, CONTINUES, NEWEST, SAMPLES, SAVES, STOPS, recognised
from .final_state import visible_name
from .judge import ENDS_EARLY, Tried
from .scenarios import KILLS, KILLS_OF_STOP, failure

REPEATS, SITE = "repeats itself undisturbed", "a site must give"
YES, NO, NOT_TRIED = "yes", "no", "not tried"
GRACE_MARGIN = 2  # what a site should give, over what was measured here
SEED = "seed torch, numpy and random, and use deterministic algorithms, to make it comparable"
HASH_ORDERED = "only with PYTHONHASHSEED=0, which the other answers are with"
SORTED = "the order of a set, and hash(), differ by process: use sorted(), or set PYTHONHASHSEED=0"
NEW_INPUTS = "other samples, or the same ones changed by other random numbers: that cannot be seen"
SAME_STATES = "steps end with the same state"
UNKNOWN = ("the cause is not among those that are recognised; --keep DIR writes what repeats it",)


class Reply(NamedTuple):
    """An answer. changes: a line for each cause; scenario: the first one that shows a no."""

    question: str
    answer: str
    detail: str = ""
    changes: tuple[str, ...] = ()
    scenario: str = ""


@dataclass
class Verdict:
    """All answers, the runs behind them, and what was noticed beside.

    untried: why, by the names of scenarios. repeats: how the second undisturbed run differs;
    uncompared: the file in which that cannot be seen, and why. is_hash_ordered: it repeats itself
    only if all processes have one hash seed, as in all of these runs.
    """

    reference: Tried
    tried: Sequence[Tried]
    untried: Mapping[str, str]
    repeats: str
    is_hash_ordered: bool
    uncompared: str
    notes: Sequence[str]

    def __post_init__(self) -> None:
        # Those with a stop, and those that ended without an error with the undisturbed run's ranks.
        self.stopped = [each for each in self.tried if each.stopped]
        self.comparable = [each for each in self.tried if not (each.failed or each.scenario.ranks)]
        self.notes = [
            *self.notes,
            *(f"not tried: {name}: {why}" for name, why in self.untried.items()),
        ]
        stops = (why for name, why in self.untried.items() if name.startswith("stop"))
        no_stop = next(stops, "no stop was asked for")
        no_end = "no disturbed run with the same ranks trained to its end"
        no_end = "it does not repeat itself without any stop" if self.repeats else no_end
        untried = {} if self.stopped else dict.fromkeys((STOPS, SAVES, SITE), no_stop)
        if self.repeats or not self.comparable:
            untried |= dict.fromkeys((BITS, SAMPLES), no_end)
        self.answers = [
            Reply(question, NOT_TRIED, untried[question]) if question in untried else answer(self)
            for question, answer in QUESTIONS.items()
        ]
        # A training need not repeat itself to survive a stop.
        bad = [each.question for each in self.answers if each.answer == NO]
        self.is_good = not self.is_hash_ordered and bad in ([], [REPEATS])

    def table(self) -> str:
        """Return the table, with a line below each answer for each thing to change."""
        width = max(len(each.question) for each in self.answers)
        lines = []
        for each in self.answers:
            lines.append(f"{each.question:{width}}  {each.answer:9}  {each.detail}".rstrip())
            lines += [f"{'':{width}}  - {change}" for change in each.changes]
        return "\n".join([*lines, *self.notes])

    def json(self) -> dict[str, Any]:
        scenarios: dict[str, Any] = {name: {"untried": why} for name, why in self.untried.items()}
        for shown in self.tried:
            scenarios[shown.name] = {
                "exit_codes": [each.code for each in shown.starts],
                "differs": str(shown.difference) if shown.difference else None,
                "causes": [cause.name for cause in recognised(shown)],
            }
        return {
            "good": self.is_good,
            "answers": [each._asdict() for each in self.answers],
            "scenarios": scenarios,
            "notes": self.notes,
        }


def _names(runs: Sequence[Tried]) -> str:
    return ", ".join(each.name for each in runs)


def _stop(runs: Sequence[Tried]) -> tuple[float, int]:
    """Return the longest time in s from a warning to the end, and the most steps of a rank."""
    starts = [start for each in runs for start in each.stopped]
    time_s = max(each.ended - (each.harmed_at or each.ended) for each in starts)
    return time_s, max(each.later_steps for each in starts)


def _no(question: str, detail: str, bad: Sequence[Tried]) -> Reply:
    """Return the answer no, with a line for each cause that the scenarios show."""
    causes = [cause for each in bad for cause in recognised(each) if question in cause.questions]
    changes = dict.fromkeys(f"{cause.what}: {cause.change}" for cause in causes)
    return Reply(question, NO, detail, tuple(changes) or UNKNOWN, bad[0].name)


def _repeats(seen: Verdict) -> Reply:
    if seen.is_hash_ordered and not seen.repeats:
        return Reply(REPEATS, NO, HASH_ORDERED, (SORTED,))
    if not seen.repeats and seen.uncompared:
        return Reply(REPEATS, NOT_TRIED, f"not compared: {seen.uncompared}")
    if not seen.repeats:
        return Reply(REPEATS, YES, f"{len(seen.reference.course().steps)} steps, twice")
    return Reply(REPEATS, NO, seen.repeats, (SEED,))


def _stops(seen: Verdict) -> Reply:
    killed = [each for each in seen.stopped if each.is_killed]
    early = [each for each in seen.stopped if each.leaves_as_done]
    on = [each for each in seen.stopped if each.ran_on]
    if killed:
        detail = f"was killed at the end of the grace: {_names(killed)}"
    elif on:
        detail = f"trained to its end: {_names(on)}"
    elif early:
        detail = f"looks complete to the site: {_names(early)}"
    else:
        time_s, steps = _stop(seen.stopped)
        later = f", {steps} steps later" if steps > 1 else ""
        return Reply(STOPS, YES, f"after at most {time_s:.1f} s{later}")
    return _no(STOPS, detail, [*killed, *on, *early])


def _saves(seen: Verdict) -> Reply:
    tried = [each for each in seen.stopped if not each.ran_on and each.stopped[-1].has_steps]
    bad = [each for each in tried if not each.saved]
    if not tried:
        return Reply(SAVES, NOT_TRIED, "no stop came between two steps")
    return _no(SAVES, _names(bad), bad) if bad else Reply(SAVES, YES)


def _continues(seen: Verdict) -> Reply:
    tried = seen.tried
    # The worst first.
    checks = ("failed", "lost", "is_mixed", "ends_early", "begins_again")
    if bad := [each for check in checks for each in tried if getattr(each, check)]:
        return _no(CONTINUES, _why_not(bad[0]), bad)
    if why := _not_continued(seen):
        return Reply(CONTINUES, NOT_TRIED, why)
    most = max(tried, key=lambda each: each.redone)
    detail = "no step is redone"
    if most.redone:
        detail = f"at most {quantity(most.redone, 'step')} redone ({most.name})"
    if not _is_certain(seen):
        detail = f"the steps that are redone cannot be counted: {SAME_STATES}"
    return Reply(CONTINUES, YES, detail)


def _not_continued(seen: Verdict) -> str:
    """Return why it is not known from which checkpoints the starts continued; empty if it is."""
    places = [place.position for each in seen.tried for place in each.continuations]
    if None in places:
        return "a start continues from a state that no step had"
    if untried := [why for name, why in seen.untried.items() if name in (KILLS, KILLS_OF_STOP)]:
        return untried[0]
    return "" if any(places) else "no start continued from a checkpoint"


def _is_certain(seen: Verdict) -> bool:
    return all(place.is_certain for each in seen.tried for place in each.continuations)


def _newest(seen: Verdict) -> Reply:
    if bad := [each for each in seen.tried if each.lost or each.passed_over]:
        return _no(NEWEST, f"{bad[0].lost or bad[0].passed_over} ({bad[0].name})", bad)
    again = ["a start begins again at the first step" for x in seen.tried if x.begins_again]
    why = next(iter(again), _not_continued(seen) or ("" if _is_certain(seen) else SAME_STATES))
    return Reply(NEWEST, NOT_TRIED if why else YES, why)


def _why_not(shown: Tried) -> str:
    name = shown.name
    if shown.failed is not None and shown.failed.is_over_limit:
        return f"{name}: the start after it did not end within the limit"
    if shown.failed is not None:
        return f"{name}: the start after it fails: {failure(shown.failed)}"
    if shown.lost:
        return f"work lost: {shown.lost} ({name})"
    if shown.is_mixed:
        shift = shown.shift
        step = shown.continuations[0].position if shown.continuations else None
        of = f": the weights of step {step}, the data after step {(step or 0) + (shift or 0)}"
        return f"states are mixed{of if shift else ''} ({name})"
    if shown.ends_early:
        return f"{name}: {ENDS_EARLY}"
    return f"{name}: it begins again at the first step"


def _bits(seen: Verdict) -> Reply:
    bad = [each for each in seen.comparable if each.how_it_differs]
    if bad:
        bad.sort(key=lambda each: each.divergence is None)
        return _no(BITS, f"{bad[0].name}: {bad[0].how_it_differs}", bad)
    unknown = [each for each in seen.comparable if each.difference.uncompared]
    if unknown:
        why = f"{unknown[0].name}: not compared: {unknown[0].difference.uncompared}"
        return Reply(BITS, NOT_TRIED, why)
    return Reply(BITS, YES, ", ".join(map(visible_name, seen.reference.final)))


def _samples(seen: Verdict) -> Reply:
    bad = [x for x in seen.comparable if x.ends_early or x.samples not in (None, (0, 0))]
    if bad:
        more, less = max(each.samples or (0, 0) for each in bad)
        detail = f"{more} {'batch' if more == 1 else 'batches'} too often, {less} too rarely"
        return _no(SAMPLES, f"{detail if more or less else ENDS_EARLY} ({_names(bad)})", bad)
    if any(each.samples is None for each in seen.comparable):
        is_fed = any(step.fed for step in seen.reference.course().steps)
        return Reply(SAMPLES, NOT_TRIED, NEW_INPUTS if is_fed else "no input of a model was seen")
    return Reply(SAMPLES, YES)


def _site(seen: Verdict) -> Reply:
    if any(each.is_killed for each in seen.stopped):
        return Reply(SITE, NO, "it was killed at the end of the grace")
    time_s, steps = _stop(seen.stopped)
    detail = "of grace, twice what was measured here"
    detail += f" in {steps} steps; yours may be longer" if steps > 1 else ""
    return Reply(SITE, f"{math.ceil(GRACE_MARGIN * time_s)} s", detail)


QUESTIONS: dict[str, Callable[[Verdict], Reply]] = {
    REPEATS: _repeats,
    STOPS: _stops,
    SAVES: _saves,
    CONTINUES: _continues,
    NEWEST: _newest,
    BITS: _bits,
    SAMPLES: _samples,
    SITE: _site,
}
