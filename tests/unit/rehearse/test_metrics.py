"""Which lines with numbers count, and when a disturbed run has other numbers."""

from types import SimpleNamespace
from typing import Any

import pytest

from slurm_job_kit.jobs.rehearse import metrics
from slurm_job_kit.jobs.rehearse.scenarios import Scenario, Tried


def wrote(folder, *lines):
    start: Any = SimpleNamespace(output="\n".join(lines), processes=[])
    return Tried(Scenario("stop"), [start], folder)


EPOCHS = ("epoch 1 loss 0.5", "top1 75.0", "top1 87.5")


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        (EPOCHS, 0),
        (EPOCHS[:2], 0),  # the others were lost
        (("epoch 1 loss 0.5", "top1 87.5", "top1 75.0top1 75.0"), 0),  # two ranks in one line
        (("epoch 1 loss 0.6", *EPOCHS[1:]), 1),
        (("epoch 1 loss 0.5", "top1 75.0", "top1 87.6"), 1),
    ],
)
def test_a_line_is_wrong_if_no_undisturbed_run_has_it(tmp_path, lines, wrong):
    first, again = (wrote(tmp_path, *EPOCHS) for _ in range(2))
    found = metrics.compare(first, again, [wrote(tmp_path, *lines)])
    assert found is not None
    assert found[:2] == (wrong, 3)


def test_lines_that_differ_between_undisturbed_runs_do_not_count(tmp_path):
    pair = wrote(tmp_path, "1 file in 0.1 s"), wrote(tmp_path, "1 file in 0.2 s")
    assert metrics.compare(*pair, []) is None
