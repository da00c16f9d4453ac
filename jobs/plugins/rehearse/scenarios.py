"""The harms that are tried, each in a run of its own, after two runs that nothing disturbs."""

import os
import re
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...base.console import print_line, quantity
from ...base.errors import PEER_TEXTS, UserError
from ...base.log_text import first_line
from . import final_state, harming
from .disks import likeliest_first, of_save
from .harming import DISKS, Harm, Start
from .judge import STEPS_ON, Scenario, Tried, numberless
from .subjects import CommandSubject, Subject

FEWEST_STEPS = 6
STEPS_LEFT = 4  # after a moment, so that a training that does not stop is seen to go on
# What Python prints last of an exception, behind the rank that torch may print before it.
_ERROR = re.compile(r"(?:\[rank\d+\]: ?)?((?:\w+\.)*\w*(?:Error|Exception)\b.*)")
# torchrun's report of a failed rank, behind the errors of the ranks.
REPORT = re.compile(r"^E\d{4} .*\] failed \(exitcode: ", re.MULTILINE)
HASH_SEED = "PYTHONHASHSEED"  # of the order of sets of texts
KILLS, KILLS_OF_STOP = "SIGKILL during a save", "SIGKILL during the save of a stop"
SAVE_KILL = Harm("save 1", "kill")
MOST_OF_NAME = 150
STATE = "state"  # the folder, in that of a run, of what lay there before its last start
KILLS_S = 120.0  # for the starts after them, but for three: two are the ends of a save


def scenarios(reference: Tried, resize: int | None) -> list[Scenario]:
    steps, saved = len(reference.course().steps), _saved(reference)
    # In the middle of an epoch, and with something to lose: no evaluation after, no save before it.
    wanted, ends = max(2, steps * 3 // 5), {x for p in reference.processes for x in p.evaluations}
    free = [step for step in range(2, steps) if not (step - 1 in saved or step in ends)]
    at = min(free, key=lambda step: abs(step - wanted), default=wanted)
    middle = f"step {at}"
    # A start's first checkpoint may have the name of an older one: it is stopped again after it.
    before = max((each for each in saved if each < at), default=0)
    again = min((each for each in saved if each >= at), default=steps) - before + 1
    evaluation = max(_late(each.evaluations, steps) for each in reference.processes)
    save, _ = _save(reference, steps)
    second = f"end {again}" if at + again <= steps else "step 2"
    no_group = "" if any(x.group for x in reference.processes) else "no process group is made"
    one_rank = "" if len(reference.ranks) > 1 else "there is one rank"
    no_evaluation = "" if evaluation else "no evaluation between two steps was seen"
    found = [
        Scenario("stop in the middle", (Harm(middle),)),
        Scenario("stop after the start-up", (Harm("start 1"),), no_group),
        Scenario("stop in the first step", (Harm("step 1"),)),
        Scenario("stop in an evaluation", (Harm(f"evaluation {evaluation}"),), no_evaluation),
        Scenario("stop during a save", (Harm(save),), "" if save else "no save between two steps"),
        Scenario("stop twice in a row", (Harm(middle, "stop twice"), Harm(second))),
        Scenario("stop of one rank after the others", (Harm(middle, "stop apart"),), one_rank),
        # After a step: the others may end the step of a rank that is killed in it.
        Scenario("SIGKILL of one rank", (Harm(middle.replace("step", "end"), "kill"),)),
        *_of_own_file(reference, steps),
    ]
    if resize is not None:
        found.append(Scenario(f"continue with {resize}", (Harm(middle),), ranks=resize))
    return found


def _saved(reference: Tried) -> set[int]:
    return {save.after for process in reference.processes for save in process.saves}


def _save(reference: Tried, steps: int) -> tuple[str, range]:
    """Return the moment of a late save between two steps, and the steps in which it is written.

    Empty without one. A save in the background also writes after the next steps.
    """
    for name in ("save", "open", "rename"):
        # Rank 0 first, which saves more than others.
        for process in sorted(reference.processes, key=lambda each: each.rank):
            after = [save.after for save in process.saves if save.kind == name]
            if place := _late(after, steps):
                begin = after[place - 1]
                later = {save.after for save in process.saves}
                free = (end for end in range(begin + 1, begin + STEPS_ON) if end not in later)
                return f"{name} {place}", range(begin, next(free, begin + STEPS_ON))
    return "", range(0)


def _of_own_file(reference: Tried, steps: int) -> list[Scenario]:
    """Return kills of the last rank at a file that only it saves, after an earlier such save.

    The others go on: they may write what makes the checkpoint valid, such as a file with the step.
    """
    last = max(reference.processes, key=lambda each: (each.rank, len(each.saves)))
    others = {x.path for p in reference.processes if p.rank != last.rank for x in p.saves}
    saves = [save for save in last.saves if save.kind == "save"]
    own = [save.after * (save.path not in others) for save in saves]
    first = min(filter(None, own), default=0)
    place = _late([after * (after > first) for after in own], steps + 1)
    kills = [(Harm(f"rank {last.rank} {kind} {place}", "kill"),) for kind in ("save", "half")]
    names = ("SIGKILL of one rank before it saves", "SIGKILL of one rank while it saves")
    return [*map(Scenario, names, kills)] if place and last.rank else []


def _late(after: Sequence[int], steps: int) -> int:
    """Return the number of the last moment, `after` so many steps, if possible with STEPS_LEFT."""
    places = [place for place, each in enumerate(after, 1) if 0 < each < steps]
    early = [place for place in places if after[place - 1] <= steps - STEPS_LEFT]
    return max(early or places, default=0)


@dataclass
class Rehearsal:
    """Runs the scenarios of a subject. limits: grace and the whole of a start, in s.

    is_any_ranks: one rank will do, too. is_kept: so is STATE. notes: lines for the user, of what
    was done otherwise than asked for. is_hash_ordered: it repeats itself only if all processes have
    one hash seed.
    """

    subject: Subject
    limits: tuple[float, float]
    final: str | None = None
    is_any_ranks: bool = False
    is_kept: bool = False
    reference: Tried | None = field(default=None, init=False)
    notes: list[str] = field(default_factory=list, init=False)
    is_hash_ordered: bool = field(default=False, init=False)
    wanted: set[str] = field(default_factory=set, init=False)  # names of the scenarios that are run

    def undisturbed(self) -> tuple[Tried, Tried]:
        """Run the training twice. Raises: UserError if it cannot be rehearsed."""
        print_line("two undisturbed runs, then up to 13 scenarios, each 1 to 2 times as long")
        first, again = self._twice()
        if again.is_off and HASH_SEED not in os.environ:
            os.environ[HASH_SEED] = "0"  # from here on: it may be what differs
            first, again = self._twice()
            self.is_hash_ordered = not again.is_off
        _check(again, self.limits[1])
        return first, again

    def _twice(self) -> tuple[Tried, Tried]:
        self.reference = None
        first = self.run(Scenario("undisturbed"))
        processes = [each for each in first.processes if each.steps]
        if self.is_any_ranks and processes and not any(each.group for each in processes):
            self.is_any_ranks, self.subject.ranks = False, 1
            self.notes.append("one rank, as the script opens no process group (or give --ranks)")
            print_line(self.notes[-1])
            first = self.run(Scenario("undisturbed"))
        _check(first, self.limits[1])
        last = max(step.t for process in first.processes for step in process.steps)
        times = (first.processes[0].t, last)
        first.final, first.others = final_state.find(first.home, first.cwd, self.final, *times)
        self.reference = first
        steps, saves = len(first.course().steps), _saved(first) - {0}
        _, recorded = _save(first, steps)
        # If possible a save that replaces another one.
        if steps in saves and not any(after < recorded.start for after in saves):
            recorded = range(steps, sys.maxsize)
        return first, self.run(Scenario("undisturbed again", recorded=recorded))

    def disturbed(
        self, first: Tried, again: Tried, resize: int | None, only: Sequence[str] = ()
    ) -> Iterator[Tried]:
        """Run each scenario, or `only` those with these words. Raises: UserError."""
        known = scenarios(first, resize)
        if not isinstance(self.subject, CommandSubject):  # the kit warns all of its ranks
            known = [each for each in known if each.harms[0].kind != "stop apart"]
        names = [*(each.name for each in known), KILLS, KILLS_OF_STOP]
        for word in only:
            if not any(word in name for name in names):
                every = ", ".join(names)
                raise UserError(f"--only {word}: not in the name of a scenario; they are {every}")
        wanted = {name for name in names if not only or any(word in name for word in only)}
        kills, self.wanted = wanted & {KILLS, KILLS_OF_STOP}, wanted
        come = [each for each in known if each.name in wanted and not each.untried]
        print_line(f"{quantity(len(come) + len(kills), 'scenario')} or more to try")
        for scenario in filter(lambda each: each.name in wanted, known):
            yield Tried(scenario) if scenario.untried else self.run(scenario)
        recorded = {KILLS: again} if KILLS in wanted else {}
        if KILLS_OF_STOP in wanted:
            step = int(known[0].harms[0].moment.removeprefix("step "))
            own = replace(known[0], name=KILLS_OF_STOP, recorded=range(step - 1, sys.maxsize))
            recorded[KILLS_OF_STOP] = self.run(own)
        yield from self._killed(recorded)

    def _killed(self, recorded: Mapping[str, Tried]) -> Iterator[Tried]:
        """Start from each disk that a SIGKILL in recorded saves leaves, the later save first."""
        begun, seen, left, tried = time.monotonic(), set[str](), 0, Counter[str]()
        saves = {name: of_save(run.folder / "start-1" / DISKS) for name, run in recorded.items()}

        def taken(name: str) -> int:
            return sum(step.t <= saves[name][0].t for step in recorded[name].course().steps)

        for name in sorted(filter(saves.get, saves), key=taken, reverse=True):
            ends: list[Tried] = []
            begin, *others = likeliest_first(saves[name])
            new = [disk for disk in others if numberless(disk.what) not in seen]
            seen |= {numberless(disk.what) for disk in new}
            for disk in [begin, *new] if new else ():
                if time.monotonic() - begun > KILLS_S and tried.total() > 2:
                    left += 1
                    continue
                tried[of_it := f"{name}: {disk.what}"] += 1
                done = Tried(
                    Scenario(of_it + " again" * (tried[of_it] - 1), (SAVE_KILL,)),
                    [_until(recorded[name].starts[0], disk.t)],
                    reference=self.reference,
                    disk=disk.what,
                    ends=[*ends] if len(ends) > 1 or disk.shown == saves[name][-1].shown else (),
                )
                self._run(done, disk.restore)
                yield done
                ends += [done] if len(ends) < 2 else []
        if recorded and not tried:
            name, why = next(iter(recorded)), "no save in its directory was seen"
            yield Tried(Scenario(name, untried=why))
        if left:
            self.notes.append(f"{left} more disks that a SIGKILL in a save leaves were not tried")

    def run(self, scenario: Scenario) -> Tried:
        """Run a scenario, and move what the training wrote to the folder of the scenario."""
        done = Tried(scenario, reference=self.reference)
        self._run(done, lambda _: self.subject.prepare(), [*scenario.harms])
        return done

    def _run(
        self, done: Tried, prepare: Callable[[Path], None], harms: Sequence[Harm] = ()
    ) -> None:
        scenario, begun, subject = done.scenario, time.time(), self.subject
        done.folder = subject.folder / re.sub(r"[^\w.]+", "-", scenario.name)[-MOST_OF_NAME:]
        shutil.rmtree(done.folder, ignore_errors=True)
        shutil.rmtree(subject.place, ignore_errors=True)
        prepare(subject.place)
        for number, harm in enumerate([*harms, None], len(done.starts) + 1):
            start = Start(number, harm, scenario.ranks or subject.ranks)
            if number == 1:
                start.ranks, start.recorded = subject.ranks, scenario.recorded
            if self.is_kept:
                shutil.rmtree(done.folder / STATE, ignore_errors=True)
                shutil.copytree(subject.place, done.folder / STATE, symlinks=True)
            harming.run(subject, start, done.folder, self.limits)
            done.starts.append(start)
            is_over = start.is_missed or start.is_over_limit or start.marker == "completed"
            if start.recorded or is_over:
                break
        home, cwd = (each.relative_to(subject.place) for each in (subject.home, subject.cwd))
        shutil.move(subject.place, done.folder / "work")
        done.home, done.cwd = done.folder / "work" / home, done.folder / "work" / cwd
        starts = quantity(len(done.starts), "start")
        print_line(f"{scenario.name}: {starts}, {time.time() - begun:.0f} s")


def _until(start: Start, t: float) -> Start:
    """Return what was recorded of a start, as if it had been killed at this time."""
    taken = max(sum(step.t <= t for step in each.steps) for each in start.processes)
    processes = [
        replace(each, steps=each.steps[:taken], saves=[save for save in each.saves if save.t <= t])
        for each in start.processes
    ]
    return replace(
        start, harm=SAVE_KILL, harmed_at=t, ended=t, code=-signal.SIGKILL, processes=processes
    )


def _check(first: Tried, limit_s: float) -> None:
    start, steps = first.starts[0], len(first.course().steps)
    trained = [each for each in first.processes if each.steps]  # a script may change its RANK
    if start.is_over_limit:
        what = f"it takes longer than --limit {limit_s:.0f} s"
        hint = "give the training flags with which it takes few steps, or a higher limit"
    elif start.code:
        what = f"it fails: {failure(start)}"
        hint = "--keep DIR keeps what it printed; --link PATH lets it read and write there"
    elif not steps:
        what = "it ends without a step of a torch optimizer; nothing can be rehearsed"
        hint = "a checkpoint of a complete training in its folder is also copied"
    elif steps < FEWEST_STEPS:
        what = f"it takes {quantity(steps, 'optimizer step')}; at least {FEWEST_STEPS} are needed"
        hint = "give it flags with which it takes more"
    elif start.ranks > 1 < len(trained) and max(each.group for each in first.processes) < 2:
        what = f"it is {len(trained)} separate trainings: no process group has two ranks"
        hint = "let it call torch.distributed.init_process_group; or --ranks 1"
    else:
        return
    raise UserError(f"undisturbed {what}", hint)


def failure(start: Start) -> str:
    """Return in one line why a start failed: its last error that is no end of a peer, if any."""
    lines = REPORT.split(start.output, maxsplit=1)[0].splitlines()
    errors = [found[1] for line in lines if (found := _ERROR.match(line))]
    own = [each for each in errors if not any(text in each for text in PEER_TEXTS)]
    said = [line for line in lines if line.strip() and "  hint: " not in line]
    words = next(reversed(own or errors or said), "")
    return first_line(words) or f"exit code {start.code}"
