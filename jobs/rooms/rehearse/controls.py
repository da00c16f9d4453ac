"""Spoils the restore of trainings that are exact, on purpose: each verdict must turn red."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from ... import installation
from . import final_state, judge
from .scenarios import Rehearsal, Tried, scenarios
from .subjects import CommandSubject, SpecSubject, Subject

SPOILS = ("momentum", "data", "generator")
SPEC = Path(__file__).with_name("self_test.yaml")
TRAININGS = "tests/rooms/integrations/other_trainers"
SAME, DIFFERS = "ends with the same bits", "differs"
LIBRARIES = ("transformers", "lightning", "fabric", "accelerate")


def subjects(folder: Path) -> Iterator[tuple[str, Subject | str]]:
    """Yield each training that is exact, or why it cannot be tried here."""
    yield "the kit", SpecSubject(config=SPEC, ranks=2, folder=folder / "kit")
    for name in LIBRARIES:
        script = installation.ROOT / TRAININGS / f"train_{name}.py"
        library = "lightning" if name == "fabric" else name
        if not script.exists():
            yield name, "its training is in the kit's repository only"
        elif find_spec(library) is None:
            yield name, f"{library} is not installed"
        else:
            subject = CommandSubject(
                words=(sys.executable, script.name),
                ranks=2,
                folder=folder / name,
                started_in=script.parent,
                search_path=str(installation.ROOT),
            )
            yield name, subject


def control(subject: Subject, limits: tuple[float, float]) -> Iterator[tuple[str, str, bool]]:
    """Yield the verdict on a stop in the middle, not spoiled and spoiled in each way.

    As (how, what was found, whether that is right).
    """
    rehearsal = Rehearsal(subject, limits)
    reference, _ = rehearsal.undisturbed()
    middle = scenarios(reference, None)[0]
    for spoil in ("", *SPOILS):
        run = rehearsal.run(replace(middle, name=f"{middle.name} {spoil}".strip(), spoil=spoil))
        found = _found(reference, run)
        # A spoiled restore that crashes shows nothing about the comparison.
        yield spoil, found, found.startswith(DIFFERS) if spoil else found == SAME


def _found(reference: Tried, run: Tried) -> str:
    homes = {run.scenario.name: run.home}
    differences = final_state.compare(sys.executable, reference.final, reference.home, homes)
    shown = judge.Judgement(run, reference, differences[run.scenario.name])
    if not shown.is_complete:
        return "does not reach its end"
    return f"{DIFFERS}{shown.since}: {shown.difference}" if shown.difference else SAME
