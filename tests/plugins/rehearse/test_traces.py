"""What the probe records, and the course of states that a training took over its starts."""

import dataclasses
import json

import pytest

from slurm_job_kit.jobs.plugins.rehearse import traces


def write(folder, pid, states, t=0.0, rank=0, rest="", optimizers=1):
    """The file of a process that goes through these states, each `(weights, optimizer)`.

    optimizers: they take the steps in turn; a step of the second one begins with state z.
    """
    lines = [{"t": t, "event": "begin"}]
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
    ],
)
def test_a_start_goes_on_where_its_first_state_is_that_of_a_step(
    tmp_path, first, second, position, taken
):
    write(tmp_path, 1, states(first))
    write(tmp_path, 2, states(second), t=10.0)
    course = traces.course(traces.read(tmp_path), 0)
    assert [each.position for each in course.continuations] == [position]
    assert "".join(step.ended.weights for step in course.steps) == taken


@pytest.mark.parametrize(("first", "is_certain"), [("abc", True), ("abcc", False)])
def test_a_place_is_uncertain_if_two_steps_have_its_state(tmp_path, first, is_certain):
    write(tmp_path, 1, states(first))
    write(tmp_path, 2, states("cd"), t=10.0)
    (continuation,) = traces.course(traces.read(tmp_path), 0).continuations
    assert continuation.is_certain == is_certain


def test_weights_alone_tell_the_place_if_the_optimizer_was_not_saved(tmp_path):
    write(tmp_path, 1, states("abcd"))
    write(tmp_path, 2, [("b", "new"), ("c", "new")], t=10.0)
    (where,) = traces.course(traces.read(tmp_path), 0).continuations
    assert (where.position, where.reached) == (1, 3)


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


@pytest.mark.parametrize(
    ("events", "is_saved"),
    [
        ([("save", 1.5)], False),  # a kill came in it
        ([("save", 1.5), ("done", 1.6)], True),
        ([("open", 0.5)], True),  # steps followed
        ([("rename", 1.5)], True),
    ],
)
def test_a_save_counts_when_it_has_ended(tmp_path, events, is_saved):
    lines = [{"t": t, "event": "save", "kind": kind, "path": "x.pt"} for kind, t in events]
    write(tmp_path, 1, states("ab"), rest="".join(json.dumps(line) + "\n" for line in lines))
    (process,) = traces.read(tmp_path)
    assert process.has_saved(before=5.0) == is_saved


def test_an_input_of_a_trial_before_the_state_is_loaded_is_left_out(tmp_path):
    write(tmp_path, 1, states("abc"))
    (process,) = traces.read(tmp_path)
    first = process.steps[0]
    process.steps[0] = dataclasses.replace(first, fed=["trial", *first.fed])
    assert traces.course([process], 0, inputs=[1]).steps[0].fed == first.fed
