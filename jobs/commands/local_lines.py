"""What a run on this machine prints: how far it is, and how it ended."""

import contextlib
import time
from collections.abc import Sequence

from ..base.console import format_duration, format_metric, format_metrics, print_line, quantity
from ..base.log_text import last_lines
from ..contract import records
from ..contract.checkpoint.names import checkpoint_step
from ..contract.records.ended import AttemptRecord
from ..contract.records.training import Progress, Result
from ..contract.rundir import RunDir
from ..contract.spec import Launch
from ..node.torchrun import stop_signal
from ..runs import fact_reader, state
from ..runs.facts import RunFacts

SHOW_S = 10.0  # between two lines about the progress


class ProgressLines:
    """Prints a line every SHOW_S, of what the trainer or a user's kit_stop.py has reported since.

    Of one that reports nothing the last line of rank 0's log, if it is new.
    """

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir, self._time = run_dir, time.monotonic()
        self._said: list[str] = []  # of the log of rank 0
        self._shown = records.read_leniently(Progress, run_dir.progress)
        self._is_begun = False  # since the last line, steps were taken the whole time

    def show(self) -> None:
        """Print a line, if it is time for one and there is something new."""
        seconds = time.monotonic() - self._time
        if seconds < SHOW_S:
            return
        self._time += seconds
        with contextlib.suppress(OSError):  # the next look may succeed
            now = records.read_leniently(Progress, self._run_dir.progress)
            is_new = now != self._shown
            said = [] if now else last_lines(self._run_dir.rank_log(0), 1)
            if said and said != self._said:
                print_line(f"rank 0: {said[0]}")
                self._said = said
            if now is not None and is_new:
                print_line(format_progress(now, self._shown if self._is_begun else None, seconds))
            self._shown, self._is_begun = now, is_new


def format_progress(now: Progress, before: Progress | None, seconds: float) -> str:
    """Return `step 60/220  loss 0.42  about 40 s left`; before: the progress `seconds` ago."""
    metrics = {name: x for name, x in (now.metrics or {}).items() if x is not None}
    left_s = now.eta_s
    if left_s is None and now.total and before and now.step > before.step:
        left_s = (now.total - now.step) * seconds / (now.step - before.step)
    parts = (
        f"step {now.step}/{now.total or '?'}",
        "" if now.loss is None else format_metric("loss", now.loss),
        format_metrics(metrics),
        f"about {format_duration(left_s, 2)} left" if left_s and left_s > 0 else "",
    )
    return "  ".join(filter(None, parts))


def format_continues(run_dir: RunDir) -> str:
    """Return `continues from step 10 of 220 (saved 2 min ago)`; empty where it is unknown."""
    facts = fact_reader.read_newest(run_dir)
    if facts.saved.checkpoint is None:
        had = next((x.checkpoint for x in reversed(facts.attempts) if x.checkpoint), None)
        lost = f"{run_dir.checkpoints} has lost {had}: bring it back, or the start fails"
        begins = lost if had else "begins with step 1: no checkpoint was saved"
        return begins if facts.spec.launch.is_trainer else ""
    at = state.time_of_checkpoint(run_dir, facts)
    age = "" if at is None else f" (saved {format_duration(max(0, time.time() - at), 1)} ago)"
    return f"continues from {_of_total(checkpoint_step(facts.saved.checkpoint), facts)}{age}"


def format_end(run_dir: RunDir, of_run: Sequence[AttemptRecord]) -> str:
    """Return `held-out accuracy 98.89% after 220 steps in 31 s`: the time of all attempts."""
    result = records.read(Result, run_dir.result)
    last = ((result and result.metrics) or {}).items()
    metrics = {name: value for name, value in last if name.startswith("eval_")}
    without_loss = {name: value for name, value in metrics.items() if name != "eval_loss"}
    how = format_metrics(without_loss or metrics) or "completed"
    after = (
        f" after {quantity(result.global_step, 'step')}" if result and result.global_step else ""
    )
    seconds = sum(each.times.stop - each.times.start for each in of_run if each.times.start)
    return f"{how}{after} in {format_duration(seconds, 2)}"


def format_stopped(run_dir: RunDir) -> str:
    """Return `stopped after step 11 of 220, saved`; of a script what it has reported."""
    facts = fact_reader.read_newest(run_dir)
    step = facts.result and facts.result.global_step
    newest = facts.saved.checkpoint and checkpoint_step(facts.saved.checkpoint)
    where = f" after {_of_total(step, facts)}" if step else ""
    if newest is None:
        return f"stopped{where}" + ", nothing saved" * facts.spec.launch.is_trainer
    return f"stopped{where}, " + ("saved" if newest == step else f"saved is step {newest}")


def _of_total(step: int | None, facts: RunFacts) -> str:
    total = facts.progress and facts.progress.total
    return f"step {step}" + (f" of {total}" if total else "")


def format_stop(launch: Launch) -> str:
    """Return what the first Ctrl-C does, as the user reads it."""
    if launch.is_trainer:
        return "stopping after this step and saving (Ctrl-C again kills)"
    if (number := stop_signal(launch)) is None:
        none = "your script runs to its end, as nothing tells it to stop (launch.stop_signal: none)"
        return f"{none}; press Ctrl-C again to kill it"
    return f"asked your script to stop: {number.name}, KIT_STOP_FILE (Ctrl-C again kills)"
