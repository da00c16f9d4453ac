"""What a disturbed run shows, beside the undisturbed one: pure functions of what was recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .final_state import Difference
from .harming import Ended
from .scenarios import Tried
from .traces import Update

INPUTS = ("optimizer", "scale", "lr", "position", "random")  # the likeliest first


@dataclass(frozen=True)
class Divergence:
    """The first step whose result differs, and which of its inputs differ already.

    step: counted from 1. inputs: of INPUTS. is_replayed: the data and the random state are both
    those of another step.
    """

    step: int
    inputs: tuple[str, ...]
    is_replayed: bool = False


@dataclass(frozen=True)
class Judgement:
    """What one scenario shows.

    stopped: the starts that were warned. failed: the first start that was not harmed and failed, or
    did not end. is_certain: whether the positions are. redone: steps that were taken twice.
    begins_again: a start took its first step from the beginning, although a state had been saved.
    samples: how many inputs of the model were taken more and less often than in the undisturbed
    run; None if that cannot be told.
    """

    run: Tried
    stopped: tuple[Ended, ...]
    failed: Ended | None
    ends_early: bool
    positions: tuple[int | None, ...]
    is_certain: bool
    redone: int
    begins_again: bool
    saved: bool
    samples: tuple[int, int] | None
    divergence: Divergence | None
    difference: Difference
    is_same_at_end: bool

    @property
    def ends_with_other_weights(self) -> bool:
        """Return whether the last step of the run ended with other weights."""
        return self.divergence is not None and not self.is_same_at_end

    @property
    def is_complete(self) -> bool:
        """Return whether the last start came to the end."""
        return self.failed is None and not self.ends_early

    @property
    def stop_steps(self) -> int:
        """The most steps that a rank took from a warning to the end."""
        return max(
            (
                sum(step.t > (start.harmed_at or 0.0) for step in process.steps)
                for start in self.stopped
                for process in start.processes
            ),
            default=0,
        )

    @property
    def stop_s(self) -> float:
        """The longest time from a warning to the end, in seconds."""
        return max((each.stop_s or 0.0 for each in self.stopped), default=0.0)


def judge(run: Tried, reference: Tried, difference: Difference) -> Judgement:
    """Return what a run shows."""
    course = run.course()
    harmed = [start for start in run.starts if start.harmed_at is not None]
    stopped = tuple(each for each in harmed if each.harm and each.harm.kind != "kill")
    free = [start for start in run.starts if start.harmed_at is None]
    failed = next((each for each in free if each.code or each.is_over_limit), None)
    positions = tuple(each.position for each in course.continuations)
    is_nothing_lost = bool(course.continuations) and all(
        each.position == each.reached and each.is_certain for each in course.continuations
    )
    # What a start does not go on from is no checkpoint. A save in a step has the state before it;
    # a start that goes on from none is another fault.
    is_little_lost = all(
        not (each.is_certain and each.position) or each.reached - each.position <= 1
        for each in course.continuations
    )
    redone = sum(each.reached - (each.position or 0) for each in course.continuations)
    return Judgement(
        run=run,
        stopped=stopped,
        failed=failed,
        ends_early=failed is None and _ends_early(run, reference),
        positions=positions,
        is_certain=all(each.is_certain for each in course.continuations),
        redone=redone,
        begins_again=any(
            each.position == 0 < each.reached
            and any(process.has_saved(each.t) for process in run.processes)
            for each in course.continuations
        ),
        saved=is_nothing_lost
        or (is_little_lost and all(_has_saved(run, start) for start in stopped)),
        samples=_samples(run, reference),
        divergence=_divergence(run, reference),
        difference=difference,
        is_same_at_end=_last_weights(run) == _last_weights(reference),
    )


def _last_weights(run: Tried) -> list[str]:
    return [step.ended.weights for step in run.course().steps[-1:]]


def _has_saved(run: Tried, start: Ended) -> bool:
    """Return whether a state file was written after the warning, or there was nothing to save."""
    assert start.harmed_at is not None
    earlier = [process for each in run.starts[: start.number] for process in each.processes]
    if not any(process.steps for process in earlier):
        return True
    saves = [save for process in start.processes for save in process.saves]
    return not start.was_killed and any(save.t >= start.harmed_at for save in saves)


def _divergence(run: Tried, reference: Tried) -> Divergence | None:
    """Return where the weights of a rank differ first; or else where what follows from them does.

    Where several ranks differ first at this step, the likeliest input of any of them comes first.
    """
    ranks = sorted({process.rank for process in reference.processes})
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
    for place, (ours, theirs) in pairs:
        if ours.ended.weights != theirs.ended.weights:
            return _diverging(place, ours, expected)
    for place, (ours, theirs) in pairs:
        if (ours.ended, ours.scale, ours.lr) != (theirs.ended, theirs.scale, theirs.lr):
            return _diverging(place, ours, expected)
    return None


def _diverging(place: int, ours: Update, expected: Sequence[Update]) -> Divergence:
    used = _used(expected)
    alike = [step for step in expected if step.fed == ours.fed]
    mine = _random(ours, used)
    is_replayed = bool(mine) and mine in [_random(step, used) for step in alike]
    inputs = _inputs(ours, expected[place - 1], expected)
    return Divergence(place, tuple(inputs), is_replayed and "random" in inputs)


def _inputs(ours: Update, theirs: Update, expected: Sequence[Update]) -> list[str]:
    """Return which inputs of a step differ, the likeliest first."""
    used, mine, other = _used(expected), ours.fed, theirs.fed
    known = {each for step in expected for each in step.fed}
    is_elsewhere = bool(mine) and {*mine} <= known
    is_random = _random(ours, used) != _random(theirs, used)
    differ = {
        "optimizer": ours.began.optimizer != theirs.began.optimizer,
        "scale": ours.scale != theirs.scale,
        "lr": ours.lr != theirs.lr,
        "position": mine != other and is_elsewhere,
        "random": is_random or (mine != other and not is_elsewhere),
    }
    return [name for name, is_different in differ.items() if is_different]


def _generators(step: Update) -> list[str]:
    return step.random.split(".") if step.random else []


def _used(expected: Sequence[Update]) -> list[int]:
    """Return which random generators the training draws from: their states change."""
    states = zip(*filter(None, map(_generators, expected)), strict=False)
    return [number for number, each in enumerate(states) if len({*each}) > 1]


def _random(step: Update, used: Sequence[int]) -> list[str]:
    states = _generators(step)
    return [states[number] for number in used if number < len(states)]


def _fed(run: Tried, rank: int) -> Counter[str]:
    """Return how often a rank took each input."""
    return Counter(each for step in run.course(rank).steps for each in step.fed)


def _samples(run: Tried, reference: Tried) -> tuple[int, int] | None:
    """Return how many inputs all ranks took too often, and how many too rarely.

    None without inputs; and if all those too often are new, as where random numbers change samples.
    """
    if not _fed(reference, 0):
        return None
    ranks = sorted({process.rank for process in reference.processes})
    pairs = [(_fed(run, rank), _fed(reference, rank)) for rank in ranks]
    added = sum((ours - theirs for ours, theirs in pairs), Counter[str]())
    known = {each for _, theirs in pairs for each in theirs}
    if added and not known & {*added}:
        return None
    return added.total(), sum((theirs - ours).total() for ours, theirs in pairs)


def _ends_early(run: Tried, reference: Tried) -> bool:
    """Return whether a run took fewer inputs; a GradScaler may have skipped more or fewer steps."""
    if run.scenario.ranks:  # with other ranks there are other steps
        return not any(process.steps for process in run.starts[-1].processes)
    taken, wanted = (_fed(each, 0).total() or len(each.course().steps) for each in (run, reference))
    return taken < wanted
