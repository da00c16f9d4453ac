"""What the probe records, and the course of states that a training took over its starts."""

import dataclasses
import json

import pytest

from slurm_job_kit.jobs.plugins.rehearse import traces


def write(folder, pid, states, t=0.0, rank=0, rest="", optimizers=1, lines=()):
    """The file of a process that goes through these states, each `(weights, optimizer)`.

    optimizers: they take the steps in turn; a step of the second one begins with state z.
    """
    lines = [{"t": t, "event": "begin"}, *lines]
    lines += [
        {
            "event": "step",
            "t": t + place,
            "began": before,
            "ended": after,
            "lr": [0.1],
            "scale": None,
            "random": "r",
            "fed": [f"batch {after[0]}"],
            "has_handler": True,
            "optimizer": (place - 1) % optimizers,
        }
        for place, (before, after) in enumerate(zip(states, states[1:], strict=False), 1)
    ]
    lines.sort(key=lambda line: line["t"])
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / f"rank-{rank}.{pid}.jsonl").write_text(text + rest, encoding="utf-8")


def states(text):
    return [(letter, letter) for letter in text]


@pytest.mark.parametrize(
    ("first", "second", "position", "taken"),
    [
        ("abc", "cde", 2, "bcde"),  # where the first start ended
        ("abc", "bcde", 1, "bcde"),  # from an older checkpoint
        ("abc", "abcde", 0, "bcde"),  # from the beginning
        ("abbc", "bc", 2, "bbc"),  # after a step that changed nothing
        ("abc", "xy", None, "bcy"),  # from a state that no step had
        ("abc", [("b", "new"), ("c", "new")], 1, "bc"),  # without the optimizer's state
    ],
)
def test_a_start_goes_on_where_its_first_state_is_that_of_a_step(
    tmp_path, first, second, position, taken
):
    write(tmp_path, 1, states(first))
    write(tmp_path, 2, states(second) if isinstance(second, str) else second, t=10.0)
    course = traces.course(traces.read(tmp_path), 0)
    assert [each.position for each in course.continuations] == [position]
    assert "".join(step.ended.weights for step in course.steps) == taken


def test_a_line_that_a_kill_cut_off_is_left_out(tmp_path):
    write(tmp_path, 1, states("abc"), rest='{"t": 5, "event": "st')
    (process,) = traces.read(tmp_path)
    assert len(process.steps) == 2


def test_of_two_optimizers_the_one_that_steps_first_tells_the_place(tmp_path):
    """A generator's and a discriminator's steps in turn: b and c are of the first one."""
    write(tmp_path, 1, [*states("abz"), ("c", "c"), ("z", "z")], optimizers=2)
    write(tmp_path, 2, [("c", "c"), ("d", "d"), ("z", "z")], t=10.0, optimizers=2)
    course = traces.course(traces.read(tmp_path), 0)
    assert [(each.position, each.reached) for each in course.continuations] == [(4, 4)]


def test_an_input_of_a_trial_before_the_state_is_loaded_is_left_out(tmp_path):
    write(tmp_path, 1, states("abc"))
    (process,) = traces.read(tmp_path)
    first = process.steps[0]
    process.steps[0] = dataclasses.replace(first, fed=["trial", *first.fed])
    assert traces.course([process], 0, inputs=[1]).steps[0].fed == first.fed
