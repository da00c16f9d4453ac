"""What the ranks of a start did, as the probe recorded it, and the course of states from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class State:
    """Check sums of the weights and of the optimizer's state."""

    weights: str
    optimizer: str


@dataclass(frozen=True)
class Update:
    """An optimizer step of one rank.

    fed: check sums of the inputs of each forward pass since the step before; random: of the
    generators' states before the first of them; scale: the loss scale of a GradScaler.
    """

    t: float
    began: State
    ended: State
    lr: tuple[float, ...]
    scale: float | None
    random: str | None
    fed: tuple[str, ...]
    has_handler: bool


@dataclass(frozen=True)
class Save:
    """A state file that a rank began to write, after so many steps of its process.

    kind: `save` by torch.save or safetensors, `open` by Python, `rename` to its final name.
    """

    t: float
    path: str
    kind: str
    after: int


@dataclass
class Process:
    """What one process of a rank did."""

    rank: int
    pid: int
    t: float
    steps: list[Update] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    evaluations: list[tuple[float, int]] = field(default_factory=list)  # time, steps before
    outside: list[str] = field(default_factory=list)
    has_group: bool = False

    @property
    def last(self) -> float:
        """The time of the last step, or of the begin."""
        return self.steps[-1].t if self.steps else self.t


def read(folder: Path) -> list[Process]:
    """Return the processes of the ranks in the order of their begins."""
    found = [_process(path) for path in folder.glob("rank-*.jsonl")]
    return sorted(filter(None, found), key=lambda each: each.t)


def _process(path: Path) -> Process | None:
    process: Process | None = None
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.endswith("\n"):  # being written, or cut off by a kill
            break
        values = json.loads(line)
        if process is None:
            rank = int(path.name.removeprefix("rank-").partition(".")[0])
            process = Process(rank, values["pid"], values["t"])
        _add(process, values)
    return process


def _add(process: Process, values: dict[str, Any]) -> None:
    at, after = values["t"], len(process.steps)
    match values["event"]:
        case "step":
            began, ended = State(*values["began"]), State(*values["ended"])
            rest = (values["scale"], values["random"], tuple(values["fed"]))
            lr, has_handler = tuple(values["lr"]), values["has_handler"]
            process.steps.append(Update(at, began, ended, lr, *rest, has_handler))
        case "save":
            process.saves.append(Save(at, values["path"], values["kind"], after))
        case "eval":
            process.evaluations.append((at, after))
        case "outside":
            process.outside.append(values["path"])
        case "group":
            process.has_group = True


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

    @property
    def is_known(self) -> bool:
        """Whether each process went on from a state of the course."""
        return all(each.position is not None for each in self.continuations)


def course(processes: Iterable[Process], rank: int) -> Course:
    """Return the course of a rank: each process goes on where its first state is that of a step."""
    path = Course()
    initial: State | None = None
    for process in processes:
        if process.rank != rank or not process.steps:
            continue
        began = process.steps[0].began
        if initial is None:
            initial = began
        else:
            states = [initial, *(step.ended for step in path.steps)]
            place, is_certain = position(states, process, path.steps)
            own = Continuation(place, len(path.steps), process.t, is_certain)
            path.continuations.append(own)
            path.steps = path.steps[: len(path.steps) if place is None else place]
        path.steps = [*path.steps, *process.steps]
    return path


def position(
    states: Sequence[State], process: Process, steps: Sequence[Update]
) -> tuple[int | None, bool]:
    """Return the last place of the state with which a process goes on, and whether it is the only.

    Of its weights alone if the optimizer's part differs; None if they are nowhere. A GradScaler may
    have left out steps, which change no state: then the loss scale of the next of `steps` tells it.
    """
    began, scale = process.steps[0].began, process.steps[0].scale
    places = [place for place, each in enumerate(states) if each == began]
    places = places or [place for place, each in enumerate(states) if each.weights == began.weights]
    fitting = [each for each in places if each == len(steps) or steps[each].scale == scale]
    places = fitting or places
    return (places[-1] if places else None), len(places) == 1


def has_one_order(steps: Sequence[Update]) -> bool:
    """Return whether the inputs of all steps are twice the same sequence, or more often."""
    fed = [each for step in steps for each in step.fed]
    return any(
        fed[period:] == fed[:-period] and fed[0] != fed[1] for period in range(2, len(fed) // 2 + 1)
    )
