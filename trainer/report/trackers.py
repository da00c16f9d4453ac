"""TensorBoard and Weights & Biases beside `metrics.jsonl`, where the spec asks for them.

Both are optional packages, imported by rank 0 alone. A tracker works on a thread of its own: the
training waits neither for its disk nor for its network, and survives whatever it raises.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Protocol

from trainer.dist.run_handle import Run
from trainer.errors import UserError, tell

CLOSE_LIMIT_S = 10.0  # a stop has to fit into the grace that Slurm gives
WANDB_INIT_LIMIT_S = 60.0
FLUSH_EVERY_S = 1.0
MAX_WAITING = 10_000  # log lines that a tracker may lag behind


class Tracker(Protocol):
    """Where numbers by step go, besides the files of the run directory."""

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Note these values of a global step."""

    def close(self) -> None:
        """Finish what was noted."""


def start(run: Run, first_step: int) -> list[Tracker]:
    """The trackers that the spec asks for. Raises UserError where a package is missing."""
    log = run.spec.log
    started: list[Tracker] = []
    if log.tensorboard:
        started += _opened("TensorBoard", lambda: TensorBoard(run, first_step))
    if log.wandb != "off":
        started += _opened("Weights & Biases", lambda: WeightsAndBiases(run))
    return started


def _opened(name: str, make: Callable[[], Tracker]) -> list[Tracker]:
    try:
        return [Feed(name, make())]
    except UserError:
        raise
    except Exception as error:
        _warn(name, error)
        return []


def _warn(name: str, error: object) -> None:
    tell(f"warning: {name} is off from here on, the training goes on without it: {error}")


class Feed:
    """Hands values to a tracker on a thread, until it fails for the first time."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self._name = name
        self._tracker = tracker
        self._waiting: queue.Queue[tuple[int, dict[str, float]] | None] = queue.Queue(MAX_WAITING)
        self._is_off = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Note these values of a global step, some time soon."""
        if self._is_off:
            return
        try:
            self._waiting.put_nowait((step, values))
        except queue.Full:
            self._give_up(f"it lags {MAX_WAITING} lines behind")

    def close(self) -> None:
        """Finish what was noted, within `CLOSE_LIMIT_S`."""
        if self._is_off:
            return
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=CLOSE_LIMIT_S)
        self._thread.join(CLOSE_LIMIT_S)
        if self._thread.is_alive():
            self._give_up(f"it did not finish within {CLOSE_LIMIT_S:.0f} s")

    def _run(self) -> None:
        try:
            while (item := self._waiting.get()) is not None:
                self._tracker.scalars(*item)
            self._tracker.close()
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: object) -> None:
        self._is_off = True
        _warn(self._name, error)


class TensorBoard:
    """Event files in RUN_DIR/tensorboard, one more for each attempt."""

    def __init__(self, run: Run, first_step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _missing("tensorboard", "log.tensorboard=false", error) from None
        # TensorBoard hides what earlier attempts wrote of the steps that are done again.
        self._writer = SummaryWriter(str(run.dir.tensorboard), purge_step=first_step)

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Write these values through to the disk: a kill may be next."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class WeightsAndBiases:
    """One W&B run for all attempts; offline each leaves a directory in RUN_DIR/wandb.

    The x axis is global_step and not W&B's own step: that one may only grow, but steps are done
    again after a kill. They come with the same values as before.
    """

    def __init__(self, run: Run) -> None:
        mode = run.spec.log.wandb
        assert mode != "off"
        if mode == "offline":  # W&B reports on itself even then, to a host on the internet
            os.environ["WANDB_ERROR_REPORTING"] = "false"
        try:
            import wandb
        except ImportError as error:
            raise _missing("wandb", "log.wandb=off", error) from None
        spec = run.spec
        self._run = wandb.init(
            project=spec.log.wandb_project or spec.name,
            id=wandb_id(run.dir.run_id),
            name=run.dir.run_id,
            dir=str(run.dir.path),
            mode=mode,
            resume="allow",
            # Not the whole spec: launch.env may hold secrets.
            config=asdict(spec.train),
            settings=wandb.Settings(
                console="off",  # the logs are ours
                disable_git=True,
                silent=mode == "offline",  # else it says much; what matters is said below
                quiet=True,
                init_timeout=WANDB_INIT_LIMIT_S,
                finish_timeout=CLOSE_LIMIT_S / 2,
                stop_fn=_refuse_stop,
                x_transaction_log_flush_interval=FLUSH_EVERY_S,  # all that a kill may lose
            ),
        )
        self._run.define_metric("*", step_metric="global_step")
        upload = f"upload it with: wandb sync {run.dir.wandb}/offline-run-*"
        tell(f"Weights & Biases: {self._run.url if mode == 'online' else upload}")

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Hand these values to W&B's own process."""
        self._run.log({"global_step": step, **values})

    def close(self) -> None:
        """Finish this attempt's part; W&B's own process ends with this one."""
        self._run.finish()


def wandb_id(run_id: str) -> str:
    """The id of the W&B run: the same in every attempt, short, and of harmless characters."""
    return hashlib.sha256(run_id.encode()).hexdigest()[:16]


def _refuse_stop() -> None:
    """W&B's default raises KeyboardInterrupt in rank 0: a crash, which is retried."""
    tell("warning: a stop in W&B does not reach the run: use `make cancel RUN=...`")


def _missing(package: str, off: str, error: ImportError) -> UserError:
    key = off.partition("=")[0]
    return UserError(
        f"{key} needs the package {package} (an extra of pyproject.toml): {error}; "
        f"pip install {package}, or set {off}"
    )
