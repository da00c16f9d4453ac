"""What a training step costs beside arithmetic, in counts: waits for the device, collectives."""

import dataclasses
from contextlib import ExitStack
from unittest import mock

import pytest
import torch.distributed as dist

from slurm_job_kit.jobs.contract.spec import Checkpoint, Log, Spec
from tests.bench.loop import device_syncs
from tests.core.test_loop import TRAIN, train

pytestmark = pytest.mark.usefixtures("process_group")

STEPS_PER_EPOCH = 3  # the last one of an epoch logs
COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "all_gather_object", "barrier", "reduce")
SPEC = Spec(
    train=dataclasses.replace(TRAIN, epochs=4, eval_every_epochs=None, grad_clip_norm=0.3),
    checkpoint=Checkpoint(every_epochs=None),
    log=Log(every_steps=1000),
)


class Counts(list[tuple[str, int, list[int]]]):
    """The beats of a training, each with the counts at that moment."""

    def __init__(self, *counters):
        super().__init__()
        self._counters = counters

    def append(self, beat):
        super().append((*beat, [count() for count in self._counters]))

    def by_step(self):
        """{step: how much each count grew from the beginning of the step to that of the next}."""
        begins = {step: counts for what, step, counts in self if what == "batch"}
        return {
            step: [after - before for before, after in zip(counts, begins[step + 1], strict=True)]
            for step, counts in begins.items()
            if step > 0 and step + 1 in begins
        }


def test_between_log_lines_a_step_waits_for_no_device_and_one_rank_calls_no_collective(tmp_path):
    # tests.core.test_loop counts what DDP exchanges.
    calls = []
    with ExitStack() as stack:
        waits = stack.enter_context(device_syncs._waiting_operators())
        for name in COLLECTIVES:
            noted = mock.Mock(side_effect=getattr(dist, name))
            stack.enter_context(mock.patch.object(dist, name, noted))
            calls.append(noted)
        counts = Counts(waits, lambda: sum(each.call_count for each in calls))
        train(tmp_path, SPEC, beats=counts)
    counts_of_steps = counts.by_step()
    plain = {step: n for step, n in counts_of_steps.items() if (step + 1) % STEPS_PER_EPOCH}
    assert len(plain) >= 6 and set(map(tuple, plain.values())) == {(0, 0)}, counts_of_steps
    # A step that logs needs the loss on the host: waits are counted.
    logging = [waits for step, (waits, _) in counts_of_steps.items() if step not in plain]
    assert len(logging) >= 3 and min(logging) > 0, counts_of_steps
