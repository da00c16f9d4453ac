"""Which lines with numbers count, and when a disturbed run has other numbers or lacks some."""

from types import SimpleNamespace
from typing import Any

import pytest

from slurm_job_kit.jobs.rehearse import metrics
from slurm_job_kit.jobs.rehearse.scenarios import Scenario, Tried


def wrote(folder, *lines, file=""):
    """A run that was harmed once, and printed lines or wrote them to a file."""
    folder.mkdir(exist_ok=True)
    if file:
        (folder / file).write_text("\n".join(lines))
    output = "" if file else "\n".join(lines)
    start: Any = SimpleNamespace(output=output, processes=[], harmed_at=1.0)
    return Tried(Scenario("stop"), [start], folder)


EPOCHS = ("epoch 1 loss 0.512", "top1 75.0", "top1 87.5")


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        (EPOCHS, 0),
        (EPOCHS[:2], 0),  # the others were lost
        (("epoch 1 loss 0.512", "top1 87.5", "top1 75.0top1 75.0"), 0),  # two ranks in one line
        (("epoch 1 loss 0.612", *EPOCHS[1:]), 1),
        (("epoch 1 loss 0.512", "top1 75.0", "top1 87.6"), 1),
    ],
)
def test_a_line_is_wrong_if_no_undisturbed_run_has_it(tmp_path, lines, wrong):
    first, again = (wrote(tmp_path, *EPOCHS) for _ in range(2))
    found = metrics.compare(first, again, [wrote(tmp_path, *lines)])
    assert found is not None
    assert (len(found.wrong), found.lines) == (wrong, 3)


def test_lines_that_differ_between_undisturbed_runs_do_not_count(tmp_path):
    pair = wrote(tmp_path, "1 file in 0.1 s"), wrote(tmp_path, "1 file in 0.2 s")
    assert metrics.compare(*pair, []) is None


@pytest.mark.parametrize(("loss", "wrong"), [("2.104", 0), ("2.105", 1)])
def test_a_part_of_an_epoch_says_where_a_line_belongs(tmp_path, loss, wrong):
    first, again = (wrote(tmp_path, "{'loss': '2.104', 'epoch': '0.25'}") for _ in range(2))
    disturbed = wrote(tmp_path, f"{{'loss': '{loss}', 'epoch': '0.25'}}")
    found = metrics.compare(first, again, [disturbed])
    assert found is not None
    assert (len(found.wrong), found.lines) == (wrong, 1)


def test_a_time_that_is_the_same_by_chance_does_not_count(tmp_path):
    first, again = (wrote(tmp_path, "step 6 saved in 0.03 s") for _ in range(2))
    assert metrics.compare(first, again, []) is None


def at(clock, seconds, *losses):
    """Lines with the time of day, and one with the seconds that a step took."""
    return [
        f"2026-11-27 {clock}:0{step},123 step {step} loss {loss} took {seconds + step / 10} s"
        for step, loss in enumerate(losses, 1)
    ]


@pytest.mark.parametrize(("losses", "wrong"), [((0.501, 0.251), 0), ((0.501, 0.751), 1)])
def test_a_time_in_a_line_is_left_out_and_the_rest_is_compared(tmp_path, losses, wrong):
    first = wrote(tmp_path, *at("10:59", 1, 0.501, 0.251))
    again = wrote(tmp_path, *at("11:00", 2, 0.501, 0.251))
    found = metrics.compare(first, again, [wrote(tmp_path, *at("11:01", 3, *losses))])
    assert found is not None
    assert (len(found.wrong), found.lines) == (wrong, 2)


@pytest.mark.parametrize(("number", "is_lost"), [(6, False), (5, False), (4, True), (0, True)])
def test_a_file_may_lack_a_line_for_each_harm(tmp_path, number, is_lost):
    lines = [f"{step},{1 + step / 8}" for step in range(6)]
    first, again = (wrote(tmp_path / name, *lines, file="loss.csv") for name in ("1", "2"))
    disturbed = wrote(tmp_path / "3", *lines[6 - number :], file="loss.csv")
    found = metrics.compare(first, again, [disturbed])
    assert found is not None
    assert (bool(found.lost), found.wrong) == (is_lost, {})
