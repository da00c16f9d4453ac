"""A callback of Hugging Face's Trainer: the training stops, saves and resumes whole."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from . import whole
from .keeper import Keeper, barrier

# A control that keeps its wish to save: save_strategy "best" and other callbacks overwrite it. The
# Trainer finds a control's saved state by the name of its class.
_ALWAYS = property(lambda self: True, lambda self, wish: None)
_SAVES = type("TrainerControl", (TrainerControl,), {"should_save": _ALWAYS})


class TransformersCallback(TrainerCallback):
    """`Trainer(callbacks=[kit])`, then `train(resume_from_checkpoint=kit.newest())`.

    The Trainer writes `checkpoint-STEP` in its output_dir, with its random generators. The callback
    adds `whole.json`, without which a checkpoint is put aside. every: as in Keeper.
    """

    def __init__(self, arguments: TrainingArguments, every: int | None = None) -> None:
        if arguments.save_total_limit == 1:  # it deletes the other one before this one is whole
            raise ValueError("save_total_limit=1 may leave no whole checkpoint: take 2 or more")
        self.keeper = Keeper(arguments.output_dir, every=every)
        self.is_stop, self.metrics = False, dict[str, Any]()

    def newest(self) -> str | None:
        """Return the newest whole checkpoint for `train`."""
        checkpoint = self.keeper.newest()
        return None if checkpoint is None else str(checkpoint)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Note the step of the checkpoint, which may be the last one."""
        self.keeper.step = state.global_step

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep the numbers for the next report."""
        own = ("step", "total")  # of the report itself
        self.metrics |= {name: value for name, value in (logs or {}).items() if name not in own}

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Report the step; at a stop let the Trainer save, until it has."""
        stop, self.keeper.step = self.keeper.stop, state.global_step
        stop.progress(state.global_step, state.max_steps, **self.metrics)
        if stop.should_stop(state.global_step):
            self.is_stop = True
            control.__class__ = _SAVES

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Make the checkpoint whole; at a stop leave."""
        barrier()  # each rank has written its file
        stop = self.keeper.stop
        if args.should_save:
            whole.seal(self.keeper.folder / f"checkpoint-{state.global_step}")
            stop.saved(state.global_step)
        if self.is_stop:
            stop.stopped()
