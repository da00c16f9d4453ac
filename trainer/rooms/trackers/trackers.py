"""Sends the values of `metrics.jsonl` to TensorBoard and Weights & Biases, if the spec says so.

Both are optional packages; only rank 0 imports them. A tracker runs on its own thread: the training
waits neither for its disk nor for its network, and continues without it after any error.

`log.wandb: offline` sets WANDB_ERROR_REPORTING=false in the environment of rank 0.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol

from ...contract import installation
from ...errors import UserError, log

if TYPE_CHECKING:  # it imports torch
    from ...process.run_handle import RunHandle

CLOSE_LIMIT_S = 10.0  # of each tracker; a stop must fit into the grace that Slurm gives
WANDB_INIT_LIMIT_S = 60.0
FLUSH_EVERY_S = 1.0
MAX_WAITING = 10_000  # records that a tracker may lag behind


class Tracker(Protocol):
    """A destination of metrics by step, besides the files of the run directory."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Record these values of a global step."""

    def close(self) -> None:
        """Write out all recorded values."""


def start(run: RunHandle, first_step: int) -> list[Tracker]:
    """Start and return the trackers of the spec's `log` section, on rank 0.

    first_step: the first global step of this attempt. Raises UserError where a package is missing.
    """
    log = run.spec.log
    started: list[Tracker] = []
    if log.tensorboard:
        started += _opened("TensorBoard", lambda: TensorBoard(run, first_step))
    if log.wandb != "off":
        started += _opened("Weights & Biases", lambda: WeightsAndBiases(run))
    return started


def _opened(name: str, make: Callable[[], Tracker]) -> list[Tracker]:
    """Return the tracker on its thread; an empty list, and a warning, where it does not start."""
    try:
        return [AsyncTracker(name, make())]
    except UserError:
        raise
    except Exception as error:
        _warn(name, error)
        return []


def _warn(name: str, error: object) -> None:
    log(f"warning: {name} is off from here on, the training continues without it: {error}")


class AsyncTracker:
    """Calls a tracker on its own thread, until the tracker's first error."""

    def __init__(
        self,
        name: str,
        tracker: Tracker,
        max_waiting: int = MAX_WAITING,
        close_limit_s: float = CLOSE_LIMIT_S,
    ) -> None:
        self._name = name
        self._tracker = tracker
        self._close_limit_s = close_limit_s
        self._waiting: queue.Queue[tuple[int, Mapping[str, float]] | None] = queue.Queue(
            max_waiting
        )
        self._is_off = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Queue these values of a global step; returns at once."""
        if self._is_off:
            return
        try:
            self._waiting.put_nowait((step, values))
        except queue.Full:
            self._give_up(f"it lags {self._waiting.maxsize} lines behind")

    def close(self) -> None:
        """Wait up to `close_limit_s` until the tracker has recorded all queued values."""
        if self._is_off:
            return
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=self._close_limit_s)
        self._thread.join(self._close_limit_s)
        if self._thread.is_alive():
            self._give_up(f"it did not finish within {self._close_limit_s:.0f} s")

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
    """Writes event files to RUN_DIR/tensorboard, a new one in each attempt."""

    def __init__(self, run: RunHandle, first_step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _missing("tensorboard", "log.tensorboard=false", error) from None
        # TensorBoard hides the values that earlier attempts wrote for the steps from here on.
        self._writer = SummaryWriter(str(run.dir.tensorboard), purge_step=first_step)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write these values and flush the file, so that a kill loses none of them."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class WeightsAndBiases:
    """One W&B run for all attempts; offline, each attempt writes a directory in RUN_DIR/wandb.

    The x axis is global_step and not W&B's own step, which may only grow: after a kill some steps
    are done again, with the same values.
    """

    def __init__(self, run: RunHandle) -> None:
        mode = run.spec.log.wandb
        assert mode != "off"
        if mode == "offline":
            # Otherwise W&B sends its own errors to a host on the internet, even offline. The
            # variable is the only switch for that, and must be set before the import.
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
            # Not the whole spec, because launch.env may hold secrets.
            config=asdict(spec.train),
            settings=wandb.Settings(
                console="off",  # the run directory has the logs
                disable_git=True,
                silent=mode == "offline",  # the log line below has all that a user needs
                quiet=True,
                init_timeout=WANDB_INIT_LIMIT_S,
                finish_timeout=CLOSE_LIMIT_S / 2,
                stop_fn=_refuse_stop,
                x_transaction_log_flush_interval=FLUSH_EVERY_S,  # the most that a kill may lose
            ),
        )
        self._run.define_metric("*", step_metric="global_step")
        upload = f"upload it with: wandb sync {run.dir.path}/wandb/offline-run-*"
        log(f"Weights & Biases: {self._run.url if mode == 'online' else upload}")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Send these values to W&B's own process."""
        self._run.log({"global_step": step, **values})

    def close(self) -> None:
        """Finish this attempt's part of the W&B run; W&B's own process ends with rank 0."""
        self._run.finish()


def wandb_id(run_id: str) -> str:
    """Return the id of the W&B run: 16 hexadecimal digits, the same in every attempt."""
    return hashlib.sha256(run_id.encode()).hexdigest()[:16]


def _refuse_stop() -> None:
    """Ignore a stop that a user asks for on W&B's web page, with a warning.

    W&B's default raises KeyboardInterrupt in rank 0: a crash, which would be retried.
    """
    cancel = installation.command("cancel", "...")
    log(f"warning: a stop in W&B does not stop the run: use `{cancel}`")


def _missing(package: str, off: str, error: ImportError) -> UserError:
    """Return the error for a package that is not installed; `off` is the override without it."""
    key = off.partition("=")[0]
    return UserError(
        f"{key} needs the package {package} (an extra of pyproject.toml): {error}; "
        f"pip install {package}, or set {off}"
    )
