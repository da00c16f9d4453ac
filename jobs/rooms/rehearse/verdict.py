"""The questions about a training and their answers, as a table, as JSON and as JUnit XML."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from xml.etree import ElementTree

from ...console import quantity
from .causes import Fault, leaves_as_done, ran_on, recognised
from .final_state import visible_name
from .judge import Judgement
from .metrics import Compared
from .scenarios import Tried, failure

REPEATS = "repeats itself undisturbed"
YES, NO, NOT_TRIED = "yes", "no", "not tried"
GRACE_MARGIN = 2  # what a site should give, over what was measured here


@dataclass(frozen=True)
class Reply:
    """The answer to one question. changes: what to change, a line for each cause."""

    question: str
    answer: str
    detail: str = ""
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """All answers, the scenarios behind them, and what was noticed beside."""

    answers: tuple[Reply, ...]
    scenarios: dict[str, dict[str, Any]]
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        """Return whether no answer is no; a training need not repeat itself to survive a stop."""
        return all(each.answer != NO for each in self.answers if each.question != REPEATS)

    def table(self) -> str:
        """Return the table, with a line below each answer for each thing to change."""
        width = max(len(each.question) for each in self.answers)
        lines = []
        for each in self.answers:
            lines.append(f"{each.question:{width}}  {each.answer:9}  {each.detail}".rstrip())
            lines += [f"{'':{width}}  - {change}" for change in each.changes]
        return "\n".join([*lines, *self.notes])

    def json(self) -> dict[str, Any]:
        """Return the verdict as JSON."""
        answers = [asdict(each) for each in self.answers]
        rest = {"scenarios": self.scenarios, "notes": self.notes, "seconds": round(self.seconds, 1)}
        return {"good": self.is_good, "answers": answers, **rest}

    def junit(self) -> str:
        """Return the verdict as JUnit XML: a test case for each question."""
        suite = ElementTree.Element("testsuite", name="rehearse", time=f"{self.seconds:.1f}")
        suite.set("tests", str(len(self.answers)))
        for name, answer in (("failures", NO), ("skipped", NOT_TRIED)):
            suite.set(name, str(sum(each.answer == answer for each in self.answers)))
        for each in self.answers:
            case = ElementTree.SubElement(suite, "testcase", classname="rehearse")
            case.set("name", each.question)
            if each.answer == NO:
                found = ElementTree.SubElement(case, "failure", message=each.detail)
                found.text = "\n".join(each.changes)
            elif each.answer == NOT_TRIED:
                ElementTree.SubElement(case, "skipped", message=each.detail)
        return _xml(suite)


def junit_of_error(why: str) -> str:
    """Return JUnit XML of a training that cannot be rehearsed."""
    suite = ElementTree.Element("testsuite", name="rehearse", tests="1", errors="1")
    case = ElementTree.SubElement(suite, "testcase", classname="rehearse", name="rehearse")
    ElementTree.SubElement(case, "error", message=why)
    return _xml(suite)


def _xml(suite: ElementTree.Element) -> str:
    """Return XML, without the control characters that it cannot have."""
    text = ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", "", text)


@dataclass
class Observed:
    """All that was tried. repeats: whether the undisturbed training repeats itself, or why not."""

    reference: Tried
    judgements: Sequence[Judgement]
    untried: dict[str, str]
    repeats: str
    metrics: Compared | None
    seconds: float
    notes: Sequence[str] = field(default_factory=tuple)


def verdict(seen: Observed) -> Verdict:
    """Return the answers to all questions."""
    answers = [
        _repeats(seen),
        _stops(seen),
        _saves(seen),
        _continues(seen),
        _bits(seen),
        _samples(seen),
        _metrics(seen),
        _site(seen),
    ]
    scenarios = {
        each.run.scenario.name: _scenario(each, seen.judgements) for each in seen.judgements
    }
    scenarios |= {name: {"untried": why} for name, why in seen.untried.items()}
    notes = [*seen.notes, *_untried(seen)]
    return Verdict(tuple(answers), scenarios, tuple(notes), seen.seconds)


def _untried(seen: Observed) -> list[str]:
    return [f"not tried: {name}: {why}" for name, why in seen.untried.items()]


def _scenario(shown: Judgement, judgements: Sequence[Judgement]) -> dict[str, Any]:
    differs = bool(shown.difference)
    return {
        "starts": [
            {"exit_code": each.code, "seconds": round(each.seconds, 2), "killed": each.was_killed}
            for each in shown.run.starts
        ],
        "stop_s": round(shown.stop_s, 2) if shown.stopped else None,
        "continued_after_step": shown.positions,
        "steps_redone": shown.redone,
        "differs": str(shown.difference) if differs else None,
        "differs_from_step": shown.divergence.step if differs and shown.divergence else None,
        "causes": [cause.name for cause in recognised(shown, judgements)],
    }


def is_comparable(shown: Judgement) -> bool:
    """Return whether a run came to its end, with the ranks of the undisturbed one."""
    return shown.is_complete and not shown.run.scenario.ranks


def _names(judgements: Sequence[Judgement]) -> str:
    return ", ".join(each.run.scenario.name for each in judgements)


def _changes(seen: Observed, bad: Sequence[Judgement], names: Sequence[str]) -> tuple[str, ...]:
    """Return a line for each of these causes that the scenarios show."""
    found: dict[str, Fault] = {}
    for each in bad:
        causes = recognised(each, seen.judgements)
        found |= {cause.name: cause for cause in causes if cause.name in names}
    return tuple(f"{cause.what}: {cause.change}" for cause in found.values())


OF_STOPS = (
    *("does not stop", "flag read in steps only", "ranks do not agree"),
    "exit code 0 before the end",
)
OF_SAVES = (
    *("no handler", "handler on some ranks", "ranks do not agree", "stops without a save"),
    *("does not stop", "flag read in steps only"),
)
OF_CONTINUING = ("checkpoint is not loaded", "saved to the final name")
OF_BITS = (
    *("optimizer not saved", "scheduler not saved", "loss scale not saved"),
    *("position in the data not kept", "random state not saved"),
)
NOT_REPEATED = "it does not repeat itself without any stop"
UNFINISHED = "no disturbed run with the same ranks came to its end"
LOST_LINES = (
    "lines of the first start are gone: open the file to append, and flush it with each save"
)
NEW_INPUTS = "other samples, or the same ones changed by other random numbers: that cannot be seen"
UNKNOWN = ("the cause is not among those that are recognised; --keep DIR keeps what was recorded",)


def _repeats(seen: Observed) -> Reply:
    question = REPEATS
    if not seen.repeats:
        return Reply(question, YES, f"{len(seen.reference.course().steps)} steps, twice")
    change = "seed torch, numpy and random, and use deterministic algorithms, to make it comparable"
    return Reply(question, NO, seen.repeats, (change,))


def _stops(seen: Observed) -> Reply:
    question = "stops when asked"
    tried = [each for each in seen.judgements if each.stopped]
    if not tried:
        return Reply(question, NOT_TRIED, _untried_why(seen))
    killed = [each for each in tried if any(start.was_killed for start in each.stopped)]
    early = [each for each in tried if any(leaves_as_done(each, start) for start in each.stopped)]
    on = [each for each in tried if any(ran_on(each, start) for start in each.stopped)]
    if killed:
        detail = f"was killed at the end of the grace: {_names(killed)}"
    elif on:
        detail = f"went on to its end: {_names(on)}"
    elif early:
        detail = f"looks complete to the site: {_names(early)}"
    else:
        seconds, steps = max(each.stop_s for each in tried), max(each.stop_steps for each in tried)
        later = f", {steps} steps later" if steps > 1 else ""
        return Reply(question, YES, f"after at most {seconds:.1f} s{later}")
    return Reply(question, NO, detail, _changes(seen, [*killed, *on, *early], OF_STOPS) or UNKNOWN)


def _untried_why(seen: Observed) -> str:
    return next(iter(seen.untried.values()), "no stop was asked for")


def _saves(seen: Observed) -> Reply:
    question = "saves when asked"
    stopped = [each for each in seen.judgements if each.stopped]
    tried = [each for each in stopped if not any(ran_on(each, start) for start in each.stopped)]
    bad = [each for each in tried if not each.saved]
    if not tried:
        return Reply(question, NOT_TRIED, _untried_why(seen))
    if not bad:
        return Reply(question, YES)
    return Reply(question, NO, _names(bad), _changes(seen, bad, OF_SAVES))


def _continues(seen: Observed) -> Reply:
    question = "continues"
    tried = seen.judgements
    bad = [each for each in tried if not each.is_complete or each.begins_again]
    if not tried:
        return Reply(question, NOT_TRIED, _untried_why(seen))
    if bad:
        changes = _changes(seen, bad, OF_CONTINUING) or UNKNOWN
        return Reply(question, NO, _why_not(bad[0]), changes)
    redone = {each.run.scenario.name: each.redone for each in tried}
    most = max(redone, key=lambda name: redone[name])
    detail = "no step is redone"
    if redone[most]:
        detail = f"at most {quantity(redone[most], 'step')} redone ({most})"
    if not all(each.is_certain for each in tried):
        detail = "the steps that are redone cannot be counted: steps end with the same state"
    if None in [place for each in tried for place in each.positions]:
        return Reply(question, NOT_TRIED, "a start goes on from a state that no step had")
    if any(0 in each.positions for each in tried if each.redone):
        detail += ", from the beginning: nothing had been saved yet"
    return Reply(question, YES, detail)


def _why_not(shown: Judgement) -> str:
    name = shown.run.scenario.name
    if shown.failed is not None and shown.failed.is_over_limit:
        return f"{name}: the start after it did not end within the limit"
    if shown.failed is not None:
        return f"{name}: the start after it fails: {failure(shown.failed)}"
    if shown.ends_early:
        return f"{name}: it ends before the last step"
    return f"{name}: it begins again at the first step"


def _bits(seen: Observed) -> Reply:
    question = "ends with the same bits"
    tried = [each for each in seen.judgements if is_comparable(each)]
    if seen.repeats:
        return Reply(question, NOT_TRIED, NOT_REPEATED)
    if not tried:
        return Reply(question, NOT_TRIED, UNFINISHED)
    bad = [each for each in tried if each.difference]
    other = [each.run.scenario.name for each in tried if each.ends_with_other_weights]
    if not bad and other:
        why = "the files are the same, but the last step ended with other weights: see --final"
        return Reply(question, NO, f"{other[0]}: {why}")
    if not bad:
        return Reply(question, YES, ", ".join(map(visible_name, seen.reference.final)))
    first = next((each for each in bad if each.divergence), bad[0])
    since = f" from step {first.divergence.step} on" if first.divergence else ""
    detail = f"{first.run.scenario.name}: differs{since}: {first.difference}"
    known = (*OF_BITS, *OF_CONTINUING)
    return Reply(question, NO, detail, _changes(seen, bad, known) or UNKNOWN)


def _samples(seen: Observed) -> Reply:
    question = "takes the same samples"
    tried = [each for each in seen.judgements if is_comparable(each)]
    known = [each for each in tried if each.samples is not None]
    bad = [each for each in known if each.samples != (0, 0)]
    if not tried:
        return Reply(question, NOT_TRIED, UNFINISHED)
    if seen.repeats:
        return Reply(question, NOT_TRIED, NOT_REPEATED)
    if not bad and len(known) < len(tried):
        is_fed = any(step.fed for step in seen.reference.course().steps)
        return Reply(question, NOT_TRIED, NEW_INPUTS if is_fed else "no input of a model was seen")
    if not bad:
        return Reply(question, YES)
    more, less = max(each.samples or (0, 0) for each in bad)
    detail = f"{quantity(more, 'batch')} too often, {less} too rarely ({_names(bad)})"
    return Reply(question, NO, detail.replace("batchs", "batches"), _changes(seen, bad, OF_BITS))


def _metrics(seen: Observed) -> Reply:
    question, found = "writes the same metrics", seen.metrics
    if not any(map(is_comparable, seen.judgements)):
        return Reply(question, NOT_TRIED, UNFINISHED)
    if seen.repeats:
        return Reply(question, NOT_TRIED, NOT_REPEATED)
    if found is None:
        return Reply(question, NOT_TRIED, "no line with a number is the same in both runs")
    if found.wrong:
        first = next(iter(found.wrong.values()))
        detail = f"{len(found.wrong)} of {found.lines} lines have other numbers, first: {first}"
        return Reply(question, NO, detail)
    if found.lost:
        return Reply(question, NO, found.lost, (LOST_LINES,))
    if found.absent == found.lines:
        return Reply(question, NOT_TRIED, "a stopped run has other lines")
    rest = f"; {found.absent} of them a stopped run does not have" if found.absent else ""
    return Reply(question, YES, quantity(found.lines, "line") + rest)


def _site(seen: Observed) -> Reply:
    question = "a site must give"
    tried = [each for each in seen.judgements if each.stopped]
    killed = [start for each in tried for start in each.stopped if start.was_killed]
    if not tried:
        return Reply(question, NOT_TRIED)
    if killed:
        return Reply(question, NO, "it was killed at the end of the grace")
    seconds = math.ceil(GRACE_MARGIN * max(each.stop_s for each in tried))
    steps = max(each.stop_steps for each in tried)
    detail = "of grace, twice what was measured here"
    detail += f" in {steps} steps; yours may be longer" if steps > 1 else ""
    return Reply(question, f"{seconds} s", detail)
