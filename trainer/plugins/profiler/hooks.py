"""Writes traces of torch's profiler for the steps and ranks of the spec's `profile` section."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import log
from ...hooks import Callback
from ...process.watcher import Pulse

if TYPE_CHECKING:
    from ...training.loop import Loop


def callbacks(pulse: Pulse) -> list[Callback]:
    return [Profiler()]


class Profiler(Callback):
    """Traces those steps of `profile.steps` that this attempt does, on one rank."""

    def __init__(self) -> None:
        self._first, self._last = 1, 0
        self._profile: Any = None
        self._from = self._to = 0

    def restored(self, loop: Loop) -> None:
        """Read from the spec which steps to trace, if this rank traces."""
        run, rank = loop.context.run, loop.context.distributed.rank
        if run.spec.profile.steps and rank in run.spec.profile.ranks:
            self._first, self._last = run.spec.profile.steps
        self._file = run.dir.tensorboard / f"profile/attempt-{run.attempt}-rank-{rank:05d}"

    def before_step(self, step: int) -> None:
        if self._first <= step <= self._last and self._profile is None:
            from torch.profiler import profile  # a rank imports torch after this module

            self._from = step
            self._profile = profile(record_shapes=True)
            self._profile.start()

    def after_step(self, step: int) -> None:
        """Write the trace after its last step."""
        if self._profile is not None:
            self._to = step
            if step >= self._last:
                self.end()

    def end(self) -> None:
        """Write the trace of the steps so far, if any; an error is only a warning in the log."""
        if self._profile is None:
            return
        traced, self._profile = self._profile, None
        # TensorBoard's profiler plugin looks for files with this ending.
        name = f"{self._file.name}-steps-{self._from}-{self._to}.pt.trace.json.gz"
        path = self._file.with_name(name)
        try:
            traced.stop()
            path.parent.mkdir(parents=True, exist_ok=True)
            traced.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            log(f"warning: no trace of steps {self._from} to {self._to}: {error}")
        else:
            log(f"trace of steps {self._from} to {self._to}: {path}")
