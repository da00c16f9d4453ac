"""Which lines with numbers count, and when a disturbed run has other numbers or lacks some."""

from types import SimpleNamespace
from typing import Any

import pytest

from slurm_job_kit.jobs.rooms.rehearse import metrics
from slurm_job_kit.jobs.rooms.rehearse.judge import Scenario, Tried


def wrote(folder, *lines, file=""):
    """A run that was harmed once, and printed lines or wrote them to a file."""
    folder.mkdir(exist_ok=True)
    if file:
        (folder / file).write_text("\n".join(lines))
    output = "" if file else "\n".join(lines)
    start: Any = SimpleNamespace(output=output, processes=[], harmed_at=1.0)
    return Tried(Scenario("stop"), [start], folder)


def compared(folder, first, disturbed, again=None, file=""):
    """What the comparison of a disturbed run with two undisturbed ones finds."""
    lines = {"1": first, "2": again or first, "3": disturbed}
    one, two, harmed = [wrote(folder / name, *of, file=file) for name, of in lines.items()]
    found = metrics.compare(one, two, [harmed])
    assert found is not None
    return found


EPOCHS = ("epoch 1 loss 0.512345", "top1 75.0123", "top1 87.5123")


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        (EPOCHS, 0),
        (EPOCHS[:2], 0),  # the others were lost
        (("epoch 1 loss 0.512345", "top1 87.5123", "top1 75.0top1 75.0123"), 0),  # of two ranks
        (("epoch 1 loss 0.612345", *EPOCHS[1:]), 1),
        (("epoch 1 loss 0.512345", "top1 75.0123", "top1 87.6123"), 1),
    ],
)
def test_a_line_is_wrong_if_no_undisturbed_run_has_it(tmp_path, lines, wrong):
    found = compared(tmp_path, EPOCHS, lines)
    assert (len(found.wrong), found.lines) == (wrong, 3)


@pytest.mark.parametrize("again", ["1 file in 0.2 s", "1 file in 0.1 s"])  # the same by chance
def test_times_alone_do_not_count(tmp_path, again):
    pair = wrote(tmp_path, "1 file in 0.1 s"), wrote(tmp_path, again)
    assert metrics.compare(*pair, []) is None


@pytest.mark.parametrize(("loss", "wrong"), [("2.104", 0), ("2.105", 1)])
def test_a_part_of_an_epoch_says_where_a_line_belongs(tmp_path, loss, wrong):
    lines = [
        f"{{'loss': '{2 + each % 1}04', 'epoch': '{each}'}}" for each in (0.25, 0.75, 1.1, 1.25)
    ]
    found = compared(tmp_path, lines, [*lines[:2], lines[2].replace("2.104", loss)])
    assert (len(found.wrong), found.lines) == (wrong, 4)


def test_a_line_counts_as_compared_only_if_it_has_its_place(tmp_path):
    lines = [f"step {step} seen {8 * step} loss 0.{step}12345" for step in (1, 2, 3)]
    other = [lines[0], "step 2 seen 8 loss 0.777777", "step 3 seen 16 loss 0.5"]
    found = compared(tmp_path, lines, other)
    assert (found.lines, found.absent, found.wrong) == (3, 2, {})


def test_lines_that_are_aligned_by_spaces_are_of_one_kind(tmp_path):
    lines = ["step   1 loss  9.123456 time 123.4 ms", "step   2 loss 10.123456 time  12.4 ms"]
    again = [each.replace("4 ms", "5 ms") for each in lines]
    found = compared(tmp_path, lines, lines, again, file="train.log")
    assert (found.lines, found.wrong, found.lost) == (2, {}, "")


def at(clock, seconds, *losses):
    """Lines with the time of day, and one with the seconds that a step took."""
    return [
        f"2026-11-27 {clock}:0{step},123 step {step} loss {loss} took {seconds + step / 10} s"
        for step, loss in enumerate(losses, 1)
    ]


@pytest.mark.parametrize(
    ("losses", "wrong"), [((0.501234, 0.251234), 0), ((0.501234, 0.751234), 1)]
)
def test_a_time_in_a_line_is_left_out_and_the_rest_is_compared(tmp_path, losses, wrong):
    first, again = (at(*when, 0.501234, 0.251234) for when in (("10:59", 1), ("11:00", 2)))
    found = compared(tmp_path, first, at("11:01", 3, *losses), again)
    assert (len(found.wrong), found.lines) == (wrong, 2)


@pytest.mark.parametrize(("number", "is_lost"), [(6, False), (5, False), (4, True), (0, True)])
def test_a_text_may_lack_a_line_for_each_harm(tmp_path, number, is_lost):
    lines = [f"{step},{1 + step / 8}" for step in range(6)]
    found = compared(tmp_path, lines, lines[6 - number :], file="loss.log")
    assert (bool(found.lost), found.wrong) == (is_lost, {})


TABLE = ["step,loss", *(f"{step},{1 + step / 8}" for step in range(6))]
OBJECTS = [f'{{"step": {step}, "loss": {1 + step / 8}}}' for step in range(6)]
NUMBERS = [f"{1 + step / 8}" for step in range(6)]
ROWS: dict[str, tuple[str, list[str], list[str], bool, bool]] = {
    "a row twice": ("a.csv", TABLE, [*TABLE[:3], *TABLE[2:]], True, False),
    "a second header": ("a.csv", TABLE, [*TABLE[:3], TABLE[0], *TABLE[3:]], True, False),
    "a row that lacks": ("a.csv", TABLE, [*TABLE[:3], *TABLE[4:]], False, True),
    "lines of JSON": ("a.jsonl", OBJECTS, [*OBJECTS[:3], *OBJECTS[2:]], True, False),
    "a list": (
        "a.json",
        [f"[{','.join(OBJECTS)}]"],
        [f"[{','.join([*OBJECTS[:3], *OBJECTS[2:]])}]"],
        *(True, False),
    ),
    "a list for each name": (
        "a.json",
        [f'{{"loss": [{",".join(NUMBERS)}]}}'],
        [f'{{"loss": [{",".join(NUMBERS[:4])}]}}'],
        *(False, True),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_file_of_rows_has_each_of_them_once(tmp_path, name):
    file, lines, other, is_twice, is_lost = ROWS[name]
    found = compared(tmp_path, lines, other, file=file)
    assert (bool(found.twice), bool(found.lost), found.wrong) == (is_twice, is_lost, {})
    found = compared(tmp_path, lines, lines, file=file)
    assert (found.twice, found.lost, found.lines) == ("", "", 6)


def test_a_file_that_is_no_json_is_named(tmp_path):
    found = compared(tmp_path, ["{1: 0.12345}"], ["{1: 0.12345}"], file="a.json")
    assert found.unread == ["a.json"]
