"""Spoils the restore of trainings that are exact, on purpose: each verdict must turn red."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from ... import installation
from . import final_state, judge
from .scenarios import Rehearsal, Tried, scenarios
from .subjects import CommandSubject, SpecSubject, Subject

SPOILS = ("momentum", "data", "generator")
# A small model with momentum and dropout, so that each of these matters.
SPEC = """
name: self-test
slurm: {nodes: 2}
launch: {nproc_per_node: 1, stop_check_steps: 1}
train:
  objective: language_model
  model: gpt
  model_args: {n_layer: 1, n_head: 2, n_embd: 32, dropout: 0.1}
  dataset: python_source
  dataset_args: {block_size: 32, max_bytes: 100000}
  max_steps: 20
  micro_batch_size: 4
  optimizer: adamw
  lr: 1e-3
  eval_every_epochs: null
checkpoint: {every_steps: 6}
"""
TRAININGS = "tests/rooms/integrations/other_trainers"
SAME, DIFFERS = "ends with the same bits", "differs"
LIBRARIES = ("transformers", "lightning", "fabric", "accelerate")


@dataclass(frozen=True)
class Control:
    """A training whose restore was spoiled, or was not: whether the verdict is as it must be."""

    training: str
    spoil: str
    found: str
    is_right: bool

    def __str__(self) -> str:
        return f"{self.training:13} {self.spoil or 'not spoiled':12} {self.found}"


def subjects(folder: Path) -> Iterator[tuple[str, Subject | str]]:
    """Yield each training that is exact, or why it cannot be tried here."""
    config = folder / "self-test.yaml"
    config.write_text(SPEC, encoding="utf-8")
    yield "the kit", SpecSubject(config, (), 2, folder / "kit", Path.cwd())
    for name in LIBRARIES:
        script = installation.ROOT / TRAININGS / f"train_{name}.py"
        library = "lightning" if name == "fabric" else name
        if not script.exists():
            yield name, "its training is in the kit's repository only"
        elif find_spec(library) is None:
            yield name, f"{library} is not installed"
        else:
            words = (sys.executable, script.name)
            path = str(installation.ROOT)
            yield (
                name,
                CommandSubject(
                    words, (), 2, folder / name, started_in=script.parent, search_path=path
                ),
            )


def control(
    name: str, subject: Subject, limits: tuple[float, float], show: Callable[[str], None]
) -> Iterator[Control]:
    """Yield the verdict on a stop in the middle, not spoiled and spoiled in each way."""
    rehearsal = Rehearsal(subject, *limits, None, show)
    reference, _ = rehearsal.undisturbed()
    middle = scenarios(reference, None)[0]
    for spoil in ("", *SPOILS):
        run = rehearsal.run(replace(middle, name=f"{middle.name} {spoil}".strip(), spoil=spoil))
        found = _found(reference, run)
        # A spoiled restore that crashes shows nothing about the comparison.
        is_right = found.startswith(DIFFERS) if spoil else found == SAME
        yield Control(name, spoil, found, is_right)


def _found(reference: Tried, run: Tried) -> str:
    homes = {run.scenario.name: run.home}
    differences = final_state.compare(sys.executable, reference.final, reference.home, homes)
    shown = judge.judge(run, reference, differences[run.scenario.name])
    if not shown.is_complete:
        return "does not come to its end"
    if not shown.difference:
        return SAME
    since = f" from step {shown.divergence.step} on" if shown.divergence else ""
    return f"{DIFFERS}{since}: {shown.difference}"
