"""The run that faults happen to: three ranks on three nodes that crawl until they may hurry."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from ..kit import Kit, Run

# Three ranks at least: two hide a wrong order of summation, for a + b = b + a.
SPEC = (
    "configs/resnet.yaml",
    "slurm.nodes=3",
    "slurm.time=00:10:00",
    "train.epochs=2",
    "train.model=tests.slurm.paced:Paced",
    "launch.stop_check_steps=1",
)
STEPS_PER_EPOCH = 29
STEPS = 2 * STEPS_PER_EPOCH
AT_ONCE = Path("/nowhere")  # no pace to keep
HELD_UP = "train.model=tests.slurm.faults.held_up:HeldUp"
# What weights, metrics or the best checkpoint depend on; everything else may differ.
_MATTERS = ("train.", "slurm.nodes=", "launch.nproc_per_node=", "log.every", "checkpoint.best=")


@dataclass(frozen=True)
class Paced:
    """A run that crawls, at the pace that tests.slurm.paced has, until `hurry`."""

    run: Run
    pace: Path

    def hurry(self) -> None:
        """Let it go on as fast as it can, in all its attempts from now on."""
        self.pace.unlink(missing_ok=True)

    def finish(self, state: str = "COMPLETED") -> dict[str, str]:
        """Hurry and wait for the end of the job; its record."""
        self.hurry()
        return self.run.wait(state)


def start(kit: Kit, *overrides: str, pace: Path | None = None) -> Paced:
    """Submit the standard run; a later override wins. Without `pace` it has a file of its own."""
    if pace is None:
        pace = kit.runs_root / f"pace-{secrets.token_hex(4)}"
        pace.parent.mkdir(parents=True, exist_ok=True)
        pace.touch()
    return Paced(kit.submit(*SPEC, f"launch.env.PACE_FILE={pace}", *overrides), pace)


class Untouched:
    """Runs that nobody interrupted, each trained once; files only, so any cluster will do."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._runs: dict[tuple[str, ...], Run] = {}

    def __call__(self, *overrides: str) -> Run:
        """The untouched run of these overrides, of which only those count that can matter."""
        key = tuple(word for word in overrides if word.startswith(_MATTERS))
        if key not in self._runs:
            run = start(self._kit, *key, pace=AT_ONCE).run
            run.wait()
            self._runs[key] = run
        return self._runs[key]
