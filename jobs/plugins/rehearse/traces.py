"""What the ranks of a start did, as the probe recorded it, and the course of states from it."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from pathlib import Path
from typing import NamedTuple


class State(NamedTuple):
    """Check sums of the weights and of the optimizer's state."""

    weights: str
    optimizer: str


@dataclass(frozen=True)
class Update:
    """An optimizer step of one rank.

    fed: check sums of the inputs of each forward pass to this step; random: of the
    generators' states before the first of them; scale: the loss scale of a GradScaler. optimizer:
    its number, in the order of their first steps.
    """

    t: float
    began: State
    ended: State
    lr: Sequence[float]
    scale: float | None
    random: Sequence[str]
    fed: Sequence[str]
    has_handler: bool
    optimizer: int


@dataclass(frozen=True)
class Save:
    """A state file that a rank began to write, after so many steps of its process.

    kind: `save` by torch.save or safetensors, and `done` at its end; `open` by Python; `rename` to
    its final name.
    """

    t: float
    path: str
    kind: str
    after: int


@dataclass
class Process:
    rank: int
    pid: int
    t: float
    steps: list[Update] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    evaluations: list[int] = field(default_factory=list)  # after so many steps
    group: int = 0  # the ranks of its process group, if it has one
    full: str = ""  # why it ceased to record the disk

    def has_saved(self, before: float) -> bool:
        """Return whether it had a whole file of some step by then: the save ended, or steps did."""
        last = self.steps[-1].t if self.steps else 0.0
        return any(
            save.after and save.t < before and (save.kind in ("done", "rename") or save.t < last)
            for save in self.saves
        )


def read(folder: Path) -> list[Process]:
    found = [_process(path) for path in folder.glob("rank-*.jsonl")]
    return sorted((each for each in found if each.t), key=lambda each: each.t)


def _process(path: Path) -> Process:
    rank, pid = path.stem.removeprefix("rank-").split(".")
    process = Process(int(rank), int(pid), 0.0)
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.endswith("\n"):  # being written, or cut off by a kill
            break
        values = json.loads(line)
        process.t = process.t or values["t"]
        match values.pop("event"):
            case "step":
                values |= {name: State(*values[name]) for name in ("began", "ended")}
                values["random"] = values["random"].split(".") if values["random"] else []
                process.steps.append(Update(**values))
            case "save":
                process.saves.append(Save(**values, after=len(process.steps)))
            case "eval":
                process.evaluations.append(len(process.steps))
            case "full":
                process.full = values["why"]
            case "group":
                process.group = max(process.group, values["size"])
    if any(step.fed for step in process.steps):
        # To load a state, torch's DCP first takes a step that makes the optimizer's state.
        process.steps = list(dropwhile(lambda step: not step.fed, process.steps))
    return process


@dataclass(frozen=True)
class Continuation:
    """Where a process went on: after so many steps of the course; None: from another state.

    reached: how many steps the course had then. t: when the process began. is_certain: False if
    more steps than one had this state, as where training changes no weight.
    """

    position: int | None
    reached: int
    t: float
    is_certain: bool


@dataclass
class Course:
    """The steps of one rank over all starts of a run, without those that were lost or redone."""

    steps: list[Update] = field(default_factory=list)
    continuations: list[Continuation] = field(default_factory=list)


def course(processes: Iterable[Process], rank: int, inputs: Sequence[int] = ()) -> Course:
    """Return the course of a rank: each process goes on where its first state is that of a step.

    inputs: how many each step has, undisturbed. A process may try a step before it loads the state:
    its first step has this input, too, and it is left out.
    """
    path = Course()
    initial: State | None = None
    for process in processes:
        if process.rank != rank or not process.steps:
            continue
        began = process.steps[0].began
        if initial is None:
            initial = began
        else:
            place, is_certain = _position(initial, process, path.steps)
            own = Continuation(place, len(path.steps), process.t, is_certain)
            path.continuations.append(own)
            path.steps = path.steps[: len(path.steps) if place is None else place]
        first, *others = process.steps
        known = [*inputs[len(path.steps) :], len(first.fed)][0]
        own_fed = first.fed[len(first.fed) - known :] if known < len(first.fed) else first.fed
        path.steps = [*path.steps, replace(first, fed=own_fed), *others]
    return path


def _position(initial: State, process: Process, steps: Sequence[Update]) -> tuple[int | None, bool]:
    """Return the last place of the state with which a process goes on, and whether it is the only.

    Of several optimizers the one that steps first counts. Of the weights alone if the optimizer's
    part differs; None if they are nowhere. A GradScaler may have left out steps, which change no
    state: then the loss scale of the next of `steps` tells the place.
    """
    first = process.steps[0]
    own = [place for place, step in enumerate(steps) if step.optimizer == first.optimizer]
    # A state, and the place of the step that began with it.
    states = zip([initial, *(steps[place].ended for place in own)], [*own, len(steps)], strict=True)
    same = [(state, place) for state, place in states if state.weights == first.began.weights]
    places = [place for state, place in same if state == first.began] or [each[1] for each in same]
    fitting = [each for each in places if each == len(steps) or steps[each].scale == first.scale]
    places = fitting or places
    return (places[-1] if places else None), len(places) == 1
