"""The steps of a run: which an attempt did, which were done twice, and the result of the run."""

from collections.abc import Sequence
from dataclasses import replace

from ..contract.checkpoint.names import checkpoint_step
from ..contract.records.ended import Action, AttemptRecord
from ..contract.records.training import Result
from .facts import AttemptFacts

# Keys of the trainer's outcome.json that result.json has, too.
_OF_OUTCOME = (
    *("global_step", "epoch", "metrics", "weights_sha256", "optimizer_sha256", "best"),
    *("exactness", "exactness_reason"),
)


def steps_of(facts: AttemptFacts) -> tuple[int | None, int | None]:
    """Return the first and the last optimizer step that the attempt did; None where it did none."""
    loaded, last = loaded_step(facts), facts.step
    if loaded is None or last is None or last <= loaded:
        return None, None
    return loaded + 1, last


def loaded_step(facts: AttemptFacts) -> int | None:
    """Return the step at which the attempt began; None where it is not known.

    A user's script reports only the first step that it finished. It may report every tenth step,
    so a checkpoint that it reported before is the better beginning.
    """
    if (loaded := facts.first_event("loaded")) is not None:
        return loaded.step
    first = facts.first_event("first_step")
    if first is None or first.step is None or facts.spec.launch.is_trainer:
        return None
    name = None if facts.plan is None else facts.plan.checkpoint
    saved = None if name is None else checkpoint_step(name)
    return saved if saved is not None and saved < first.step else first.step - 1


def steps_redone(attempts: Sequence[AttemptRecord]) -> int:
    """Return the optimizer steps that were done more than once."""
    done = redone = 0
    for entry in attempts:
        if entry.first_step is not None and entry.last_step is not None:
            redone += max(0, done - entry.first_step + 1)
            done = entry.last_step
    return redone


def result_of(facts: AttemptFacts, action: Action, reason: str) -> Result:
    """Return the result of a run that ends so. `facts`: with the last attempt's record.

    What the outcome.json of a user's script has beside its status is not copied; `global_step` is
    the last one that the script reported, if it did.
    """
    redone = steps_redone(facts.attempts) if facts.is_step_known else None
    if action is not Action.DONE:
        # A script may write no progress.json, but its step into outcome.json, or neither.
        step = facts.outcome.global_step if facts.step is None else facts.step
        return Result(
            status="cancelled" if action is Action.CANCEL else "held",
            reason=reason,
            global_step=0 if step is None and facts.spec.launch.is_trainer else step,
            attempts=len(facts.attempts),
            steps_redone=redone,
        )
    complete = Result("completed", attempts=len(facts.attempts), steps_redone=redone)
    if not facts.spec.launch.is_trainer:
        return replace(complete, global_step=facts.step)
    reached = {name: getattr(facts.outcome, name) for name in _OF_OUTCOME}
    return replace(complete, **reached)
