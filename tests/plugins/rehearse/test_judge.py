"""What the starts of a run show beside the undisturbed one, and the answers to it."""

import dataclasses
import sys

import pytest

from slurm_job_kit.jobs.plugins.rehearse import traces
from slurm_job_kit.jobs.plugins.rehearse.causes import BITS, CONTINUES, NEWEST, SAMPLES, SAVES
from slurm_job_kit.jobs.plugins.rehearse.final_state import Difference
from slurm_job_kit.jobs.plugins.rehearse.harming import Harm, Start
from slurm_job_kit.jobs.plugins.rehearse.judge import Scenario, Tried, compare
from slurm_job_kit.jobs.plugins.rehearse.scenarios import scenarios
from slurm_job_kit.jobs.plugins.rehearse.verdict import NO, NOT_TRIED, REPEATS, YES, Verdict
from tests.plugins.rehearse.test_rehearse import answers
from tests.plugins.rehearse.test_traces import states, write


def tried(folder, *starts, reference=None, saves=()):
    """A run whose starts go through states, each a letter; saves: start, time, name, kind."""
    done = Tried(Scenario("run"), reference=reference, folder=folder / "run")
    for number, text in enumerate(starts):
        (own := folder / f"{number}").mkdir(parents=True)
        begun = number * 10 + 0.1
        lines = [
            {"event": "save", "t": begun + t, "path": f"{folder}/work/{name}", "kind": kind}
            for start, t, name, kind in saves
            if start == number
        ]
        write(own, 1, states(text), t=begun, lines=lines)
        start = Start(number + 1, Harm("step 3"), 1, harmed_at=begun + 9, code=1)
        done.starts.append(dataclasses.replace(start, processes=traces.read(own)))
    done.starts[-1] = dataclasses.replace(done.starts[-1], harm=None, harmed_at=None, code=0)
    return done


NINTH, TENTH = (0, 2.5, "9.pt", "done"), (0, 4.5, "10.pt", "done")  # after step 2, and 4
OPENED, AS_TENTH = (0, 2.5, "9.pkl", "open"), (0, 4.5, "10.pkl", "open")


@pytest.mark.parametrize(
    ("starts", "saves", "there", "newer"),
    [
        (("abcdefg", "cdefg"), [NINTH, TENTH], "10.pt", "10.pt of step 4"),
        (("abcdefg", "efg"), [NINTH, TENTH], "10.pt", ""),
        (("abcdefg", "cdefg"), [NINTH, TENTH], "deleted", ""),
        (("abcdefg", "cdefg"), [NINTH, (0, 4.5, "best.pt", "done")], "best.pt", ""),
        (("abcde", "cdefg"), [NINTH, TENTH], "10.pt", ""),  # it may not be whole
        (("abcde", "cdefg", "cdefg"), [NINTH, (1, 2.5, "0.pt", "done")], "0.pt", "0.pt of step 4"),
        # By pickle or NumPy: it was opened, and steps followed.
        (("abcdef", "cdef"), [OPENED, AS_TENTH], "10.pkl", "10.pkl of step 4"),
    ],
)
def test_a_start_goes_on_from_the_newest_checkpoint(tmp_path, starts, saves, there, newer):
    run = tried(tmp_path, *starts, saves=saves)
    (run.folder / "work").mkdir(parents=True)
    (run.folder / "work" / there).touch()
    (found,) = [x for x in Verdict(run, [run], {}, "", False, "", []).answers if x[0] == NEWEST]
    assert found.detail == (newer and f"a start from step 2 although {newer} was there (run)")


def test_a_second_stop_comes_after_the_first_save_of_the_second_start(tmp_path):
    saves = [(0, step + 0.5, f"{step}.pt", "done") for step in (3, 6, 9, 12)]
    found = scenarios(tried(tmp_path, "abcdefghijklm", saves=saves), None)
    moments = {each.name: [harm.moment for harm in each.harms] for each in found}
    assert moments["stop twice in a row"] == ["step 6", "end 4"]


ALL, EARLY = "abcdefg", {CONTINUES: NO, BITS: NO, SAMPLES: NO}
NO_KILL = {"SIGKILL during a save": "no save was seen"}


@pytest.mark.parametrize(
    ("undisturbed", "starts", "untried", "expected", "causes"),
    [
        (ALL, ("abcd", "defg"), {}, {CONTINUES: YES, NEWEST: YES, SAVES: YES}, []),
        (ALL, ("abcd", "defg"), NO_KILL, dict.fromkeys((CONTINUES, NEWEST), NOT_TRIED), []),
        (ALL, ("abcd", "bcdefg"), {}, {SAVES: NO}, ["stops without a save"]),
        (ALL, ("a", ALL), {}, dict.fromkeys((SAVES, CONTINUES, NEWEST), NOT_TRIED), []),
        (ALL, ("abcd", "dfg"), {}, EARLY, ["steps left out"]),  # e is
        (ALL, ("abcd", "d"), {}, EARLY, ["stops without a save", "steps left out"]),
        (ALL, ("abcd", "dxyz"), {}, {BITS: NO, SAMPLES: NOT_TRIED}, []),  # other random numbers
        ("aaaaaaa", ("aaaa", "aaaa"), {}, {SAVES: NO}, ["stops without a save"]),  # no change
    ],
)
def test_a_run_is_judged(tmp_path, undisturbed, starts, untried, expected, causes):
    reference = tried(tmp_path / "a", undisturbed)
    run = tried(tmp_path / "b", *starts, reference=reference)
    verdict = Verdict(reference, [run], untried, "", False, "", []).json()
    assert expected.items() <= answers(verdict).items()
    assert verdict["scenarios"]["run"]["causes"] == causes


@pytest.mark.parametrize(
    ("t", "kind", "is_fault"),
    [
        (0.5, "done", False),  # before all steps, such as a cache
        (3.5, "save", False),  # a kill came in it
        (3.5, "done", True),
        (2.5, "open", True),  # steps followed
    ],
)
def test_a_start_from_the_beginning_is_a_fault_once_a_save_has_ended(tmp_path, t, kind, is_fault):
    run = tried(tmp_path, "abcd", ALL, saves=[(0, t, "x.pt", kind)])
    assert run.begins_again is is_fault


def test_files_are_compared_that_both_undisturbed_runs_have(tmp_path):
    """Other files that are alike in both, too; a disturbed run may lack one of these."""
    files = ({"a.pt": "1", "b.json": "1", "c.json": "1"}, {"b.json": "1", "c.json": "1"})
    runs = [Tried(Scenario(str(x)), home=tmp_path / str(x)) for x in range(3)]
    for run, contents in zip(runs, (*files, {"a.pt": "1", "b.json": "2"}), strict=True):
        (run.home / "code").mkdir(parents=True)
        for name, content in contents.items():
            (run.home / "code" / name).write_text(content)
    runs[0].final, runs[0].others = ["code/a.pt"], ["code/b.json", "code/c.json"]
    compare(sys.executable, runs[0], runs[2:], runs[1])
    found = runs[2].difference
    assert found.uncompared == "the second undisturbed run wrote no a.pt: see --final"
    assert ([*found.values], found.missing) == (["b.json: "], "")
    runs[1].difference = Difference(uncompared="a.pt: it has an object")
    verdict = Verdict(runs[0], [runs[1]], {}, "", False, runs[1].difference.uncompared, [])
    assert {answers(verdict.json())[each] for each in (REPEATS, BITS)} == {NOT_TRIED}
    assert found.without(()) and not Difference(values=["a.pt: train_seconds"]).without(())
