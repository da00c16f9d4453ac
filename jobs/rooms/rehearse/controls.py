"""Spoils the restore of trainings that are exact, on purpose: each verdict must turn red."""

import sys
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from ... import installation
from .judge import compare
from .scenarios import Rehearsal, scenarios
from .subjects import CommandSubject, SpecSubject, Subject

SPOILS = ("momentum", "data", "generator")
SPEC = Path(__file__).with_name("self_test.yaml")
TRAININGS = "tests/rooms/integrations/other_trainers"
LIBRARIES = ("transformers", "lightning", "fabric", "accelerate")


def self_test(folder: Path, limits: tuple[float, float]) -> int:
    """Print what the verdict is on exact trainings that are spoiled; returns 1 if one is wrong."""
    kit = SpecSubject(config=SPEC, ranks=2, folder=folder / "kit")
    wrong = _control("the kit", kit, limits)
    for name in LIBRARIES:
        script = installation.ROOT / TRAININGS / f"train_{name}.py"
        library = "lightning" if name == "fabric" else name
        if not script.exists():
            print(f"{name:13} not tried    its training is in the kit's repository only")
        elif find_spec(library) is None:
            print(f"{name:13} not tried    {library} is not installed")
        else:
            subject = CommandSubject(
                words=(sys.executable, script.name),
                ranks=2,
                folder=folder / name,
                started_in=script.parent,
                search_path=str(installation.ROOT),
            )
            wrong += _control(name, subject, limits)
    print(f"{wrong} wrong" if wrong else "each verdict is right")
    return 1 if wrong else 0


def _control(name: str, subject: Subject, limits: tuple[float, float]) -> int:
    """Stop a training in the middle, also spoiled; returns how many verdicts are wrong."""
    with closing(subject):
        wrong, rehearsal = 0, Rehearsal(subject, limits)
        reference, _ = rehearsal.undisturbed()
        middle = scenarios(reference, None)[0]
        for spoil in ("", *SPOILS):
            own = replace(middle, name=f"{middle.name} {spoil}".strip(), spoil=spoil)
            run = rehearsal.run(own)
            compare(sys.executable, reference, [run])
            unread = run.difference.uncompared
            found = f"not compared: {unread}" if unread else "ends with the same bits"
            found = run.how_it_differs if run.difference else found
            # A spoiled restore that crashes shows nothing about the comparison.
            found = found if run.is_complete else "does not reach its end"
            print(f"{name:13} {spoil or 'not spoiled':12} {found}", flush=True)
            is_seen = bool(run.difference) == bool(spoil) and (not unread or bool(spoil))
            wrong += not (run.is_complete and is_seen)
    return wrong
