"""When a training is harmed, from what its undisturbed run did."""

from typing import Any

from slurm_job_kit.jobs.rooms.rehearse import scenarios
from slurm_job_kit.jobs.rooms.rehearse.traces import Process, Save


def test_rank_0_decides_where_a_save_and_an_evaluation_are():
    """The other rank began first, saves less, and does not evaluate."""
    place: Any = "x.pt"
    other = Process(1, 11, 0.0, saves=[Save(1.0, place, "save", 2)])
    first = Process(0, 10, 0.5, saves=[Save(1.0, place, "save", 2), Save(2.0, place, "save", 2)])
    first.evaluations = [2]
    start: Any = type("Start", (), {"processes": [other, first]})
    reference = scenarios.Tried(scenarios.Scenario("undisturbed"), [start])
    assert scenarios._save(reference, 9) == ("save 1", "save 2", "save 2")
    assert scenarios._evaluation(reference, 9) == "evaluation 1"


def test_a_save_of_two_kinds_of_files_is_harmed_between_them():
    names = [("save", "x.pt.tmp"), ("rename", "x.pt"), ("open", "n.pkl.tmp"), ("rename", "n.pkl")]
    saves = [Save(1.0, name, kind, after) for after in (1, 2) for kind, name in names]
    start: Any = type("Start", (), {"processes": [Process(0, 10, 0.5, saves=saves)]})
    reference = scenarios.Tried(scenarios.Scenario("undisturbed"), [start])
    assert scenarios._save(reference, 9) == ("save 2", "save 2", "rename 4")
