"""A run of a scenario, and what it shows beside the undisturbed one, from what was recorded."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import or_
from pathlib import Path
from typing import NamedTuple

from ...base.errors import FailedError
from .final_state import Difference, files, of_run, visible_name
from .harming import Harm, Start
from .subjects import PROBE
from .traces import Continuation, Course, Process, Update, course

INPUTS = ("optimizer", "scale", "lr", "position", "random")  # the likeliest first
ENDS_EARLY = "it ends before the last step"
NO_FINAL = "the undisturbed run wrote no file that could be the final state: see --final"
# A training may agree on a stop only every few steps, and end before that.
STEPS_ON = 3


@dataclass(frozen=True)
class Scenario:
    """A run and its harms, one for each start but the last.

    untried: why it cannot be tried. ranks: of the later starts, if other than of the first one.
    recorded: the disk is recorded while the first start has taken so many steps.
    """

    name: str
    harms: tuple[Harm, ...] = ()
    untried: str = ""
    ranks: int | None = None
    recorded: range = range(0)


class Divergence(NamedTuple):
    """The first step whose result differs, and which of its inputs differ already.

    step: counted from 1. inputs: of INPUTS. is_replayed: the data and the random state are both
    those of another step.
    """

    step: int
    inputs: Sequence[str]
    is_replayed: bool = False


@dataclass
class Tried:
    """A run of a scenario. Its home and working directory have what the training wrote.

    reference: the undisturbed run, None for itself. final: names of the files of the final state,
    in which it has this difference; others: which it wrote besides. disk: what was done last before
    a kill in a save. ends: those with a kill just before and after this save, if tried before.
    """

    scenario: Scenario
    starts: list[Start] = field(default_factory=list)
    home: Path = Path()
    cwd: Path = Path()
    reference: Tried | None = None
    final: Sequence[str] = ()
    others: Sequence[str] = ()
    difference: Difference = Difference()
    folder: Path = Path()
    disk: str = ""
    ends: Sequence[Tried] = ()

    @property
    def name(self) -> str:
        return self.scenario.name

    @property
    def processes(self) -> list[Process]:
        return [process for start in self.starts for process in start.processes]

    @property
    def ranks(self) -> list[int]:
        return sorted({process.rank for process in self.processes})

    def course(self, rank: int = 0) -> Course:
        undisturbed = self.reference.course().steps if self.reference else ()
        return course(self.processes, rank, [len(step.fed) for step in undisturbed])

    def fed(self, rank: int) -> Counter[str]:
        return Counter(each for step in self.course(rank).steps for each in step.fed)

    @property
    def untried(self) -> str:
        """Why the scenario was not tried; empty if it was."""
        missed = any(each.is_missed and each.code == 0 for each in self.starts)  # else it failed
        return self.scenario.untried or ("the moment did not come again" if missed else "")

    @cached_property
    def stopped(self) -> list[Start]:
        return [x for x in self.starts if x.harmed_at and x.harm and x.harm.kind != "kill"]

    @property
    def is_killed(self) -> bool:
        """Whether a warned start was killed at the end of the grace."""
        return any(start.was_killed for start in self.stopped)

    @property
    def ran_on(self) -> bool:
        """Whether a warned start took steps up to its end, in place of a stop."""
        ended = [each for each in self.stopped if each.code == 0 and not self._goes_on(each)]
        return any(start.later_steps >= STEPS_ON for start in ended)

    @property
    def leaves_as_done(self) -> bool:
        """Whether a warned start left with exit code 0 and no marker before its end."""
        ended = [each for each in self.stopped if each.code == 0 and self._goes_on(each)]
        return any(not start.marker for start in ended)

    def _goes_on(self, start: Start) -> bool:
        return any(later.has_steps for later in self.starts[start.number :])

    @cached_property
    def failed(self) -> Start | None:
        """The first start that was not harmed and failed, or did not end."""
        free = [start for start in self.starts if start.harmed_at is None]
        return next((each for each in free if each.code or each.is_over_limit), None)

    @cached_property
    def ends_early(self) -> bool:
        if self.failed is not None or self.reference is None:
            return False
        if self.scenario.ranks:  # with other ranks there are other steps
            return not self.starts[-1].has_steps
        return len(self.course().steps) < len(self.reference.course().steps)

    @property
    def is_partial(self) -> bool:
        """Whether a rank was killed in a save that the others could end."""
        return any(harm.moment.startswith("rank ") for harm in self.scenario.harms)

    @cached_property
    def passed_over(self) -> str:
        """From which checkpoint a start continues, although a later one of its kind was there."""
        if self.is_partial:  # of the later one
            return ""
        work, saved = self.folder.parent / "work", list[tuple[int, str, bool]]()
        ours = [each for each in self.processes if each.steps and each.rank == 0]
        begins = [Continuation(0, 0, 0.0, is_certain=True), *self.continuations]
        for process, begin in zip(ours, begins, strict=False):
            place = begin.reached if begin.position is None else begin.position
            kinds = {numberless(name) for step, name, _ in saved if step == place}
            for step, name, is_whole in sorted(saved, reverse=True) if begin.is_certain else ():
                is_there = is_whole and (self.folder / "work" / name).exists()
                if is_there and step > place and numberless(name) in kinds:
                    shown = f"{visible_name(name)} of step {step}"
                    return f"a start from step {place} although {shown} was there"
            for save in process.saves:
                if save.kind != "save":
                    # Steps followed, or it is the disk with all that was saved.
                    is_whole = save.t < process.steps[-1].t or len(self.ends) == 1
                    saved.append((place + save.after, os.path.relpath(save.path, work), is_whole))
        return ""

    @cached_property
    def lost(self) -> str:
        """How much older the state is with which a start continues than one before the save."""
        runs = [self, *self.ends[:1]]
        places = [run.continuations[0].position for run in runs if run.continuations]
        if len(places) < 2 or places[0] is None or places[0] >= (places[1] or 0):
            return ""
        return f"a start from step {places[0]} although a whole state of step {places[1]} was there"

    @cached_property
    def is_off(self) -> bool:
        """Whether its course is no course of the undisturbed run."""
        ends = [len(each.course().steps) for each in (self, self.reference) if each is not None]
        return self.divergence is not None or ends[0] != ends[-1]

    @cached_property
    def is_mixed(self) -> bool:
        """Whether a start continues from parts of two states, although it can from a whole one."""
        is_between = len(self.ends) > 1 and not any(each.failed for each in self.ends)
        if self.failed or self.lost or not is_between:
            return False
        if not any(each.is_off for each in self.ends):
            return self.is_off
        shifts = [each.shift for each in self.ends]
        return shifts == [0, 0] and self.shift not in (0, None)

    @property
    def shift(self) -> int | None:
        """How many steps the inputs are ahead of the weights where the first start continues."""
        place = self.continuations[0].position if self.continuations else None
        steps, expected = (each.course().steps for each in (self, self.reference or self))
        if place is None or place >= len(steps):
            return None
        same = [number for number, each in enumerate(expected) if each.fed == steps[place].fed]
        return same[0] - place if len(same) == 1 else None

    @cached_property
    def continuations(self) -> list[Continuation]:
        return self.course().continuations

    @property
    def redone(self) -> int:
        return sum(each.reached - (each.position or 0) for each in self.continuations)

    @property
    def begins_again(self) -> bool:
        """Whether a start took its first step from the beginning, although a state was saved."""
        return not self.disk and any(
            each.position == 0 < each.reached
            and any(process.has_saved(each.t) for process in self.processes)
            for each in self.continuations
        )

    @cached_property
    def saved(self) -> bool:
        known = self.continuations
        if known and all(each.position == each.reached and each.is_certain for each in known):
            return True
        # What no start continues from is no checkpoint. A save in a step has the state before
        # it; a start that continues from none is another fault.
        lost = [each.reached - each.position for each in known if each.is_certain and each.position]
        is_kept = bool(self.passed_over) or max(lost, default=0) <= 1
        return is_kept and all(map(self._has_saved, self.stopped))

    def _has_saved(self, start: Start) -> bool:
        """Return whether a state file was written after the warning, or nothing was to save."""
        saves = [save for process in start.processes for save in process.saves]
        is_later = any(save.t >= (start.harmed_at or 0) for save in saves)
        has_steps = any(each.has_steps for each in self.starts[: start.number])
        return not has_steps or (not start.was_killed and is_later)

    @cached_property
    def samples(self) -> tuple[int, int] | None:
        """How many inputs of the model all ranks took too often, and how many too rarely.

        None without inputs, and if all those too often are new: random numbers change samples.
        """
        if self.reference is None or not self.reference.fed(0):
            return None
        pairs = [(self.fed(rank), self.reference.fed(rank)) for rank in self.reference.ranks]
        added = sum((ours - theirs for ours, theirs in pairs), Counter[str]())
        known = {each for _, theirs in pairs for each in theirs}
        if added and not known & {*added}:
            return None
        return added.total(), sum((theirs - ours).total() for ours, theirs in pairs)

    @cached_property
    def divergence(self) -> Divergence | None:
        """Where the weights of a rank differ first; or else where what follows from them does.

        Where several ranks have one it is with the inputs of all of them.
        """
        if self.reference is None:
            return None
        pairs = [(self.course(rank), self.reference.course(rank)) for rank in self.reference.ranks]
        known = [x for ours, theirs in pairs if (x := _divergence(ours.steps, theirs.steps))]
        if not known:
            return None
        step = min(each.step for each in known)
        first = [each for each in known if each.step == step]
        inputs = [name for name in INPUTS if any(name in each.inputs for each in first)]
        return Divergence(step, inputs, any(each.is_replayed for each in first))

    @property
    def how_it_differs(self) -> str:
        """Words for how its end differs, with the step from which on; empty if it does not."""
        if self.ends_early:
            return ENDS_EARLY
        since = f"differs from step {self.divergence.step} on: " if self.divergence else ""
        if self.difference or self.divergence is None or self.reference is None:
            return f"{since}{self.difference}" if self.difference else ""
        ends = [each.course().steps[-1:] for each in (self, self.reference)]
        ours, theirs = ([step.ended.weights for step in steps] for steps in ends)
        return f"{since}the last weights; see --final" if ours != theirs else ""


def numberless(text: str) -> str:
    """Return a text in which all numbers are alike, such as those of steps."""
    return re.sub(r"\d+", "#", text)


def _divergence(steps: Sequence[Update], expected: Sequence[Update]) -> Divergence | None:
    pairs = list(enumerate(zip(steps, expected, strict=False), 1))
    weights = [place for place, (a, b) in pairs if a.ended.weights != b.ended.weights]
    rest = [
        place for place, (a, b) in pairs if (a.ended, a.scale, a.lr) != (b.ended, b.scale, b.lr)
    ]
    if (place := next(iter(weights or rest), None)) is None:
        return None
    ours, theirs = steps[place - 1], expected[place - 1]
    # Those whose states change: the training draws from them.
    states = zip(*(each.random for each in expected if each.random), strict=False)
    used = [number for number, each in enumerate(states) if len({*each}) > 1]

    def drawn(step: Update) -> list[str]:
        return [step.random[number] for number in used if number < len(step.random)]

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
    return Divergence(place, [name for name in INPUTS if differ[name]], is_replayed)


def compare(python: str, reference: Tried, runs: Sequence[Tried], again: Tried) -> None:
    """Note in each run how its final files differ from those of the reference.

    again: the second undisturbed run. Other files that are alike in both belong to the final state,
    too; a run may lack one of them, such as an older checkpoint.
    """
    runs = [*runs, again]
    known = {part for path in files(again.home) for part in path.parts}
    request = {
        run.name: {
            visible_name(name): (str(of_run(run.home, name, known)), str(reference.home / name))
            for name in (*reference.final, *reference.others)
        }
        for run in runs
    }
    done = subprocess.run(
        [python, str(PROBE / "compare_files.py")],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise FailedError(f"the final files cannot be compared:\n{done.stderr[-2000:]}")
    found = {
        run: {name: Difference(**fields) for name, fields in files.items()}
        for run, files in json.loads(done.stdout).items()
    }
    twice = found[again.name]
    final = {visible_name(name) for name in reference.final}
    gone = sorted(name for name in final if twice[name].missing)
    why = f"the second undisturbed run wrote no {gone[0]}: see --final" if gone else ""
    alike = {name for name, x in twice.items() if not (x.tensors or x.uncompared or x.missing)}
    for run in runs:
        own = (
            each
            for name, each in found[run.name].items()
            if name in final.difference(gone) or (name in alike and not each.missing)
        )
        run.difference = reduce(or_, own, Difference(uncompared=why if final else NO_FINAL))
