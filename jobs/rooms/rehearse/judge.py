"""What a disturbed run shows, beside the undisturbed one, from what was recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from .final_state import Difference
from .harming import Start
from .scenarios import Tried
from .traces import Continuation, Update

INPUTS = ("optimizer", "scale", "lr", "position", "random")  # the likeliest first
# A training may agree on a stop only every few steps, and end before that.
STEPS_ON = 3


@dataclass(frozen=True)
class Divergence:
    """The first step whose result differs, and which of its inputs differ already.

    step: counted from 1. inputs: of INPUTS. is_replayed: the data and the random state are both
    those of another step.
    """

    step: int
    inputs: tuple[str, ...]
    is_replayed: bool = False


@dataclass
class Judgement:
    """What one scenario shows.

    difference: of its final files. middle: what the stop in the middle shows, if that was tried.
    """

    run: Tried
    reference: Tried
    difference: Difference
    middle: Judgement | None = None

    @cached_property
    def stopped(self) -> list[Start]:
        """The starts that were warned."""
        harmed = [start for start in self.run.starts if start.harmed_at is not None]
        return [each for each in harmed if each.harm and each.harm.kind != "kill"]

    @property
    def is_killed(self) -> bool:
        """Whether a warned start was killed at the end of the grace."""
        return any(start.was_killed for start in self.stopped)

    @property
    def ran_on(self) -> bool:
        """Whether a warned start took steps up to its end, in place of a stop."""
        return any(
            start.code == 0 and start.later_steps >= STEPS_ON and not self._goes_on(start)
            for start in self.stopped
        )

    @property
    def leaves_as_done(self) -> bool:
        """Whether a warned start left with exit code 0 and no marker before its end."""
        return any(
            start.code == 0 and not start.marker and self._goes_on(start) for start in self.stopped
        )

    def _goes_on(self, start: Start) -> bool:
        later = self.run.starts[start.number :]
        return any(process.steps for each in later for process in each.processes)

    @cached_property
    def failed(self) -> Start | None:
        """The first start that was not harmed and failed, or did not end."""
        free = [start for start in self.run.starts if start.harmed_at is None]
        return next((each for each in free if each.code or each.is_over_limit), None)

    @cached_property
    def ends_early(self) -> bool:
        """Whether it took fewer inputs; a GradScaler may have skipped more or fewer steps."""
        if self.failed is not None:
            return False
        if self.run.scenario.ranks:  # with other ranks there are other steps
            return not any(process.steps for process in self.run.starts[-1].processes)
        runs = (self.run, self.reference)
        taken, wanted = (_fed(each, 0).total() or len(each.course().steps) for each in runs)
        return taken < wanted

    @property
    def is_complete(self) -> bool:
        """Whether the last start came to the end."""
        return self.failed is None and not self.ends_early

    @property
    def is_comparable(self) -> bool:
        """Whether it came to its end, with the ranks of the undisturbed run."""
        return self.is_complete and not self.run.scenario.ranks

    @cached_property
    def continuations(self) -> list[Continuation]:
        """Where the later starts went on."""
        return self.run.course().continuations

    @property
    def redone(self) -> int:
        """How many steps were taken twice."""
        return sum(each.reached - (each.position or 0) for each in self.continuations)

    @property
    def begins_again(self) -> bool:
        """Whether a start took its first step from the beginning, although a state was saved."""
        return any(
            each.position == 0 < each.reached
            and any(process.has_saved(each.t) for process in self.run.processes)
            for each in self.continuations
        )

    @cached_property
    def saved(self) -> bool:
        """Whether the warned starts saved."""
        if self.continuations and all(
            each.position == each.reached and each.is_certain for each in self.continuations
        ):
            return True
        # What no start continues from is no checkpoint. A save in a step has the state before
        # it; a start that continues from none is another fault.
        is_little_lost = all(
            not (each.is_certain and each.position) or each.reached - each.position <= 1
            for each in self.continuations
        )
        return is_little_lost and all(map(self._has_saved, self.stopped))

    def _has_saved(self, start: Start) -> bool:
        """Return whether a state file was written after the warning, or nothing was to save."""
        earlier = [each for one in self.run.starts[: start.number] for each in one.processes]
        saves = [save for process in start.processes for save in process.saves]
        is_later = any(save.t >= (start.harmed_at or 0) for save in saves)
        return not any(each.steps for each in earlier) or (not start.was_killed and is_later)

    @cached_property
    def samples(self) -> tuple[int, int] | None:
        """How many inputs of the model all ranks took too often, and how many too rarely.

        None without inputs; and if all those too often are new, as where random numbers change
        samples.
        """
        if not _fed(self.reference, 0):
            return None
        ranks = _ranks(self.reference)
        pairs = [(_fed(self.run, rank), _fed(self.reference, rank)) for rank in ranks]
        added = sum((ours - theirs for ours, theirs in pairs), Counter[str]())
        known = {each for _, theirs in pairs for each in theirs}
        if added and not known & {*added}:
            return None
        return added.total(), sum((theirs - ours).total() for ours, theirs in pairs)

    @cached_property
    def divergence(self) -> Divergence | None:
        """Where the weights of a rank differ first; or else where what follows from them does."""
        return _divergence(self.run, self.reference)

    @property
    def ends_with_other_weights(self) -> bool:
        """Whether the last step of the run ended with other weights."""
        ours, theirs = (
            [step.ended.weights for step in each.course().steps[-1:]]
            for each in (self.run, self.reference)
        )
        return self.divergence is not None and ours != theirs

    @property
    def since(self) -> str:
        """Words for the step from which on the run differs."""
        return f" from step {self.divergence.step} on" if self.divergence else ""


def _ranks(run: Tried) -> list[int]:
    return sorted({process.rank for process in run.processes})


def _fed(run: Tried, rank: int) -> Counter[str]:
    """Return how often a rank took each input."""
    return Counter(each for step in run.course(rank).steps for each in step.fed)


def _divergence(run: Tried, reference: Tried) -> Divergence | None:
    """Return the first divergence, where several ranks have one with the inputs of all of them."""
    ranks = _ranks(reference)
    found = [_of_rank(run.course(rank).steps, reference.course(rank).steps) for rank in ranks]
    known = [each for each in found if each is not None]
    if not known:
        return None
    step = min(each.step for each in known)
    first = [each for each in known if each.step == step]
    inputs = [name for name in INPUTS if any(name in each.inputs for each in first)]
    return Divergence(step, tuple(inputs), any(each.is_replayed for each in first))


def _of_rank(steps: Sequence[Update], expected: Sequence[Update]) -> Divergence | None:
    pairs = list(enumerate(zip(steps, expected, strict=False), 1))
    weights = [place for place, (a, b) in pairs if a.ended.weights != b.ended.weights]
    rest = [
        place for place, (a, b) in pairs if (a.ended, a.scale, a.lr) != (b.ended, b.scale, b.lr)
    ]
    place = next(iter(weights or rest), None)
    return None if place is None else _diverging(place, steps[place - 1], expected)


def _diverging(place: int, ours: Update, expected: Sequence[Update]) -> Divergence:
    theirs = expected[place - 1]
    generators = list(map(_generators, expected))
    # Those whose states change: the training draws from them.
    states = zip(*filter(None, generators), strict=False)
    used = [number for number, each in enumerate(states) if len({*each}) > 1]

    def drawn(step: Update) -> list[str]:
        own = _generators(step)
        return [own[number] for number in used if number < len(own)]

    known = {each for step in expected for each in step.fed}
    is_elsewhere = bool(ours.fed) and {*ours.fed} <= known
    differ = {
        "optimizer": ours.began.optimizer != theirs.began.optimizer,
        "scale": ours.scale != theirs.scale,
        "lr": ours.lr != theirs.lr,
        "position": ours.fed != theirs.fed and is_elsewhere,
        "random": drawn(ours) != drawn(theirs) or (ours.fed != theirs.fed and not is_elsewhere),
    }
    alike = [drawn(step) for step in expected if step.fed == ours.fed]
    is_replayed = differ["random"] and bool(drawn(ours)) and drawn(ours) in alike
    return Divergence(place, tuple(name for name in INPUTS if differ[name]), is_replayed)


def _generators(step: Update) -> list[str]:
    return step.random.split(".") if step.random else []
