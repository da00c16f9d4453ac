"""The harms that are tried, each in a run of its own, after two runs that nothing disturbs."""

import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...console import print_line, quantity
from ...errors import PEER_TEXTS, UserError
from ...kinds import KINDS
from ...known_causes import known_cause
from ...log_text import first_line, visible
from . import final_state, harming
from .harming import Harm, Start
from .judge import Scenario, Tried
from .subjects import CommandSubject, Subject
from .traces import Process

FEWEST_STEPS = 6
STEPS_LEFT = 4  # after a moment, so that a training that does not stop is seen to go on
GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd")  # CUDA and ROCm do not work in a fork
# What Python prints last of an exception, behind the rank that torch may print before it.
_ERROR = re.compile(r"(?:\[rank\d+\]: ?)?((?:\w+\.)*\w*(?:Error|Exception)\b.*)")
# torchrun's report of a failed rank, behind the errors of the ranks.
_REPORT = re.compile(r"^E\d{4} .*\] failed \(exitcode: ", re.MULTILINE)
MIDDLE = "stop in the middle"
UNDISTURBED = ("undisturbed", "undisturbed again")


def scenarios(reference: Tried, resize: int | None) -> list[Scenario]:
    """Return what is tried, from what the undisturbed run did."""
    steps = len(reference.course().steps)
    middle = f"step {_middle(reference, steps)}"
    evaluations = (_late("evaluation", each.evaluations, steps) for each in _by_rank(reference))
    evaluation = next(filter(None, evaluations), "")
    first_file, save, end = _save(reference, steps)
    # A data worker may think that it is a rank.
    has_group = all(each.has_group for each in reference.processes if each.steps)
    no_group = "" if has_group else "no process group is made"
    one_rank = "" if len(reference.ranks) > 1 else "there is one rank"
    no_evaluation = "" if evaluation else "no evaluation between two steps was seen"
    no_save = "" if save else "no save between two steps was seen"
    found = [
        Scenario(MIDDLE, (Harm(middle),)),
        Scenario("stop after the start-up", (Harm("start 1"),), no_group),
        Scenario("stop in the first step", (Harm("step 1"),)),
        Scenario("stop in an evaluation", (Harm(evaluation),), no_evaluation),
        Scenario("stop during a save", (Harm(save),), no_save),
        Scenario("stop twice in a row", (Harm(middle, "stop twice"), Harm("step 2"))),
        Scenario("stop of one rank after the others", (Harm(middle, "stop apart"),), one_rank),
        # After a step: the others may end the step of a rank that is killed in it.
        Scenario("SIGKILL of one rank", (Harm(middle.replace("step", "end"), "kill"),)),
        Scenario("SIGKILL during a save", (Harm(save, "kill"),), no_save),
    ]
    for name, moment in (("begin", first_file), ("end", end)):
        if moment != save:
            found.append(Scenario(f"SIGKILL at the {name} of a save", (Harm(moment, "kill"),)))
    if resize is not None:
        found.append(Scenario(f"continue with {resize}", (Harm(middle),), ranks=resize))
    return found


def _middle(reference: Tried, steps: int) -> int:
    """Return a step in the middle before which there is something to lose: no save just before."""
    saved = {save.after + 1 for process in reference.processes for save in process.saves}
    wanted = max(2, steps * 3 // 5)
    found = [step for step in range(2, steps) if step not in saved]
    return min(found, key=lambda step: abs(step - wanted), default=wanted)


def _by_rank(reference: Tried) -> list[Process]:
    """Return the processes, rank 0 first: it alone may evaluate, and saves more than others."""
    return sorted(reference.processes, key=lambda each: each.rank)


def _save(reference: Tried, steps: int) -> tuple[str, str, str]:
    """Return moments of a late save between two steps; empty without one.

    They are in its first and in its last file that torch writes, and before the last of its files
    is begun or gets its name. The same one stands for all if there is one file.
    """
    for name in ("save", "open", "rename"):
        for process in _by_rank(reference):
            after = [save.after for save in process.saves if save.kind == name]
            if moment := _late(name, after, steps):
                at = after[int(moment.removeprefix(name)) - 1]
                return f"{name} {after.index(at) + 1}", moment, _end(process, at, moment)
    return "", "", ""


def _end(process: Process, at: int, moment: str) -> str:
    """Return the last moment of the save after so many steps, or `moment` if it has one file."""
    before = [save for save in process.saves if save.after <= at and save.kind != "done"]
    own = [save for save in before if save.after == at]
    files = {save.path for save in own if save.kind == "rename"} or {save.path for save in own}
    kind = own[-1].kind
    if len(files) == 1 or moment.startswith(kind):
        return moment
    return f"{kind} {sum(save.kind == kind for save in before)}"


def _late(name: str, after: Sequence[int], steps: int) -> str:
    """Return the last moment of a kind, if possible with STEPS_LEFT; empty if none is between."""
    places = [place for place, each in enumerate(after, 1) if 0 < each < steps]
    early = [place for place in places if after[place - 1] <= steps - STEPS_LEFT]
    return f"{name} {(early or places)[-1]}" if places else ""


@dataclass
class Rehearsal:
    """Runs the scenarios of a subject. limits: grace and the whole of a start, in s."""

    subject: Subject
    limits: tuple[float, float]
    final: str | None = None
    reference: Tried | None = field(default=None, init=False)

    def undisturbed(self) -> tuple[Tried, Tried]:
        """Run the training twice. Raises: UserError if it cannot be rehearsed."""
        first = self.run(Scenario(UNDISTURBED[0]))
        try:
            _check(first, self.limits[1])
            last = max(step.t for process in first.processes for step in process.steps)
            begun = first.processes[0].t
            first.final = final_state.find(first.home, first.cwd, self.final, begun, last)
        except UserError as error:
            outside = sorted({path for each in first.processes for path in each.outside})
            notes = [f"\n  it wrote outside of its directory: {path}" for path in outside]
            raise UserError(f"{error}{''.join(notes)}") from None
        self.reference, subject = first, self.subject
        is_command = isinstance(subject, CommandSubject)
        subject.is_forked = is_command and not any(map(os.path.exists, GPU_DEVICES))
        again = self.run(Scenario(UNDISTURBED[1]))
        if subject.is_forked and not _is_same(first, again):
            # A fork may be what differs: a second process of its own decides.
            subject.is_forked = False
            again = self.run(Scenario(UNDISTURBED[1]))
            subject.is_forked = not _is_same(first, again)
        return first, again

    def disturbed(
        self, reference: Tried, resize: int | None, only: Sequence[str] = ()
    ) -> Iterator[Tried]:
        """Run each scenario, or `only` those with these words. Raises: UserError."""
        known = scenarios(reference, resize)
        if not isinstance(self.subject, CommandSubject):  # the kit warns all of its ranks
            known = [each for each in known if each.harms[0].kind != "stop apart"]
        for word in only:
            if not any(word in each.name for each in known):
                names = ", ".join(each.name for each in known)
                raise UserError(f"--only {word}: not in the name of a scenario; they are {names}")
        for scenario in known:
            if only and not any(word in scenario.name for word in only):
                continue
            if scenario.untried:
                print_line(f"{scenario.name}: not tried: {scenario.untried}")
                yield Tried(scenario)
            else:
                yield self.run(scenario)

    def run(self, scenario: Scenario) -> Tried:
        """Run a scenario, and move what the training wrote to the folder of the scenario."""
        done, begun, subject = Tried(scenario, reference=self.reference), time.time(), self.subject
        folder = subject.folder / scenario.name.replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(subject.place, ignore_errors=True)
        subject.prepare()
        for number, harm in enumerate([*scenario.harms, None], 1):
            start = Start(number, harm, subject.ranks)
            if number > 1:
                start.ranks, start.spoil = scenario.ranks or subject.ranks, scenario.spoil
            harming.run(subject, start, folder, self.limits)
            done.starts.append(start)
            if start.is_missed or start.marker == "completed" or start.is_over_limit:
                break
        home, cwd = (each.relative_to(subject.place) for each in (subject.home, subject.cwd))
        shutil.move(subject.place, folder / "work")
        done.home, done.cwd = folder / "work" / home, folder / "work" / cwd
        starts = quantity(len(done.starts), "start")
        print_line(f"{scenario.name}: {starts}, {time.time() - begun:.0f} s")
        return done


def _check(first: Tried, limit_s: float) -> None:
    """Refuse what cannot be rehearsed. Raises: UserError."""
    start, steps = first.starts[0], len(first.course().steps)
    if start.is_over_limit:
        what = f"it takes longer than --limit {limit_s:.0f} s"
        hint = "give the training flags with which it takes few steps, or a higher limit"
    elif start.code:
        what = f"it fails: {failure(start)}"
        hint = "--keep DIR keeps what it printed; --link PATH gives the copy what git ignores"
    elif not steps:
        what = "it ends without a step of a torch optimizer; nothing can be rehearsed"
        hint = "a checkpoint of a complete training in its folder is also copied"
    elif steps < FEWEST_STEPS:
        what = f"it takes {quantity(steps, 'optimizer step')}"
        what += f", and a stop in the middle needs {FEWEST_STEPS}"
        hint = "give it flags with which it takes more"
    else:
        return
    raise UserError(f"undisturbed {what}\n  hint: {hint}")


def failure(start: Start) -> str:
    """Return in one line why a start failed: its last error that is no end of a peer, if any."""
    lines = [visible(each) for each in _REPORT.split(start.output, maxsplit=1)[0].splitlines()]
    errors = [found[1] for line in lines if (found := _ERROR.match(line))]
    own = [each for each in errors if not any(text in each for text in PEER_TEXTS)]
    words = next(reversed(own or errors or [line for line in lines if line.strip()]), "")
    first = first_line(words) or f"exit code {start.code}"
    if "EOFError" in words:
        return f"it asks for input, and a job has none ({first})"
    cause = known_cause(words)
    return first if cause is None else f"{first} (cause: {KINDS[cause].what})"


def _is_same(first: Tried, again: Tried) -> bool:
    """Return whether two runs took the same course, on each rank."""
    return first.starts[0].code == again.starts[0].code and all(
        [step.ended for step in first.course(rank).steps]
        == [step.ended for step in again.course(rank).steps]
        for rank in first.ranks
    )
