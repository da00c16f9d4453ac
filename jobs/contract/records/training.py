"""How far a training is and what it reached: progress, checkpoints, results.

The trainer writes these files; a user's kit_stop.py writes some of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from . import OMIT_NONE


@dataclass(frozen=True)
class Best:
    """The step with the best value of the metric that checkpoint.best names."""

    metric: str | None = field(default=None, metadata=OMIT_NONE)  # all None: there is none yet
    value: float | None = field(default=None, metadata=OMIT_NONE)
    step: int | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True)
class Outcome:
    """outcome.json: how the training of an attempt ended, by rank 0 or by a user's kit_stop.py.

    kit_stop.py writes the first two keys. The trainer writes the first four, and all of them when
    the training is complete: `attempt.close` copies them into result.json.
    """

    status: Literal["completed", "stopped"] | None = None
    global_step: int | None = None
    epoch: int | None = field(default=None, metadata=OMIT_NONE)
    checkpoint: str | None = field(default=None, metadata=OMIT_NONE)
    metrics: Mapping[str, float | None] | None = field(default=None, metadata=OMIT_NONE)
    weights_sha256: str | None = field(default=None, metadata=OMIT_NONE)
    optimizer_sha256: str | None = field(default=None, metadata=OMIT_NONE)
    best: Best | None = field(default=None, metadata=OMIT_NONE)
    exactness: str | None = field(default=None, metadata=OMIT_NONE)
    exactness_reason: str | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True)
class Result:
    """result.json: how the run ended. Users' scripts read it, so its keys stay.

    It is written once, as a whole, when the run ends. The trainer's runs have all keys. A run that
    was held or cancelled, or whose ranks are a user's script, has the first five at most.
    """

    status: Literal["completed", "held", "cancelled"]
    reason: str | None = field(default=None, metadata=OMIT_NONE)
    global_step: int | None = field(default=None, metadata=OMIT_NONE)
    attempts: int | None = None
    steps_redone: int | None = None
    epoch: int | None = field(default=None, metadata=OMIT_NONE)
    metrics: Mapping[str, float | None] | None = field(default=None, metadata=OMIT_NONE)
    weights_sha256: str | None = field(default=None, metadata=OMIT_NONE)
    optimizer_sha256: str | None = field(default=None, metadata=OMIT_NONE)
    best: Best | None = field(default=None, metadata={"omit_without": "weights_sha256"})
    exactness: str | None = field(default=None, metadata=OMIT_NONE)
    exactness_reason: str | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True)
class Progress:
    """progress.json: rank 0's last finished optimizer step, and what a live line shows.

    The trainer writes all keys but `metrics`. A user's kit_stop.py writes step, total and metrics.
    """

    step: int
    total: int | None = None  # optimizer steps of the run
    epoch: int | None = None  # finished epochs
    epochs: int | None = None
    loss: float | None = None
    # At the last log line: samples_per_s, tokens_per_s, mfu, gpu_use, gpu_gib, as far as known.
    speed: Mapping[str, float] | None = None
    eta_s: float | None = None
    lr: float | None = None
    # Of the last evaluation, or a user script's own.
    metrics: Mapping[str, float | None] | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True)
class SavedCheckpoint:
    """saved.json: the step of a user script's newest checkpoint, by its kit_stop.py."""

    step: int
