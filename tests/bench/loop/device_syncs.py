"""B6: between two log lines the host never waits for the device."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from slurm_job_kit.jobs.contract.spec import Checkpoint, Log, Spec, Train
from slurm_job_kit.trainer.model.objectives import Sums
from slurm_job_kit.trainer.training.run import prepare
from tests.bench.place import Place, StepClock
from tests.bench.rounds import Figure, Target

LOG_EVERY = 10
# A step with all optional parts: augmentation, accumulation, clipping, a schedule.
TRAIN = Train(
    model="mini_resnet",
    model_args={"channels": [8], "blocks_per_stage": 1},
    dataset="digits",
    transform="image",
    transform_args={"crop_padding": 1, "flip": True, "mean": [0.3], "std": [0.4]},
    epochs=3,
    grad_accum_steps=2,
    grad_clip_norm=1.0,
    schedule="cosine",
    eval_every_epochs=None,
)
SPEC = Spec(train=TRAIN, checkpoint=Checkpoint(interval=None), log=Log(every_steps=LOG_EVERY))
# The host asks a tensor for a value (`item`, `bool`), or for a shape that depends on values.
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal", "is_nonzero"}


class _Steps(StepClock):
    """How often the host waited in each step, from its beginning to that of the next one."""

    def __init__(self, num_waits: Callable[[], int]) -> None:
        super().__init__(0, 0)
        self._num_waits = num_waits
        self._before: dict[int, int] = {}

    def begin(self, step: int) -> None:
        self._before.setdefault(step, self._num_waits())

    def waits(self, steps_per_epoch: int) -> tuple[list[int], list[int]]:
        """(waits of steps between log lines, of steps that log), without the first step.

        The last step of an epoch logs, too.
        """
        counts = {
            step: self._before[step + 1] - before
            for step, before in self._before.items()
            if step > 0 and step + 1 in self._before
        }
        ends = {
            step for step in counts if 0 in ((step + 1) % LOG_EVERY, (step + 1) % steps_per_epoch)
        }
        logging = [n for step, n in counts.items() if step in ends]
        return [n for step, n in counts.items() if step not in ends], logging


def measure(place: Place) -> list[Figure]:
    """The waits of a step between log lines; the waits of a logging step show that they count."""
    context = place.context(SPEC)
    loop = prepare(context)
    is_gpu = place.device.type == "cuda"
    with (_sync_warnings if is_gpu else _waiting_operators)() as num_waits:
        steps = _Steps(num_waits)
        place.run(context, loop, steps)
    between, logging = steps.waits(loop.length.steps_per_epoch)
    how = "torch.cuda's sync debug mode" if is_gpu else "operators that wait; there is no GPU"
    return [
        Figure(
            f"waits for the device per step between log lines, {len(between)} steps ({how})",
            sum(between) / len(between),
            Target("==", 0),
        ),
        Figure(f"in a step that logs, {len(logging)} steps", sum(logging) / len(logging), None),
    ]


@contextmanager
def _sync_warnings() -> Iterator[Callable[[], int]]:
    """The number so far of torch's warnings about a wait for the GPU."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield lambda: sum("synchronizing" in str(warning.message) for warning in seen)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@contextmanager
def _waiting_operators() -> Iterator[Callable[[], int]]:
    """The number so far of operators that would make the host wait if the tensors were on a GPU."""
    mode, tolist = _Counting(), torch.Tensor.tolist

    def counted(tensor: torch.Tensor) -> Any:
        # No operator on a CPU. Tensors of integers are on the host also where there is a GPU.
        mode.count += tensor.is_floating_point()
        return tolist(tensor)

    on_device = mock.patch.object(Sums, "row", Sums.row_on_device)
    with mode, on_device, mock.patch.object(torch.Tensor, "tolist", counted):
        yield lambda: mode.count


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ in WAITING
        return func(*args, **(kwargs or {}))
