"""The table of the fault tests: the row of each test, and the content of a line."""

import re
from pathlib import Path
from typing import Any

from tests.slurm.faults.rows import is_of, row_of
from tests.slurm.faults.table import markdown
from tests.slurm.faults.why_rows import EXPECTED, problem_of

REPOSITORY = Path(__file__).resolve().parents[2]
LINE = {
    "row": 2,
    "test": "test_row_02_preemption_with_grace[cgroup]",
    "proctrack": "cgroup",
    "slurm": "22.05.8",
    "passed": True,
    "causes": ["preemption", "completed"],
    "stop_s": [1.26, None],
    "start_s": [4.0, 5.55],
    "steps_redone": 0,
    "why": ["preemption"],
}
NO_RUN: dict[str, Any] = {"stop_s": [], "start_s": [], "steps_redone": None, "why": None}


def test_a_test_is_of_the_row_in_its_name():
    assert row_of("test_row_14_sigkill_of_a_rank[cgroup]") == 14
    assert row_of("test_an_array_task_is_requeued_alone") is None


def test_row_8_is_rows_1_2_and_11_on_every_proctrack():
    assert is_of(8, "test_row_11_scancel_in_a_step[pgid]", has_proctrack=True)
    assert not is_of(8, "test_row_11_scancel_just_before", has_proctrack=False)
    assert not is_of(8, "test_row_09_storm[pgid]", has_proctrack=True)
    assert is_of(9, "test_row_09_storm[pgid]", has_proctrack=True)


def test_table_has_a_line_for_each_test_by_row_and_the_last_result_counts():
    failed = LINE | {"passed": False}
    later = failed | {"row": 11, "test": "test_row_11_scancel[cgroup-not-twice]"} | NO_RUN
    unnumbered = LINE | {"row": None, "test": "test_an_array_task"} | NO_RUN
    lines = markdown([unnumbered, later, failed, LINE]).splitlines()
    assert lines[2:] == [
        "| 2 | preemption with grace | cgroup | 22.05.8 | yes | 1.3 | 4.0, 5.5 | 0 | preemption |",
        "| 11 | scancel, not-twice | cgroup | 22.05.8 | NO |  |  |  |  |",
        "|  | an array task | cgroup | 22.05.8 | yes |  |  |  |  |",
    ]


def test_docs_have_a_line_for_each_row_and_each_row_has_a_test():
    text = (REPOSITORY / "docs" / "faults.md").read_text(encoding="utf-8")
    numbers = re.findall(r"^\| (\d+) \|", text.split("\n## The rows\n")[1], re.M)
    texts = (path.read_text(encoding="utf-8") for path in REPOSITORY.glob("tests/**/test_*.py"))
    tested = {int(row) for each in texts for row in re.findall(r"def test_row_(\d\d)_", each)}
    assert numbers == [str(row) for row in sorted(tested | {8})]


def test_each_fault_test_says_what_why_must_name():
    folder = REPOSITORY / "tests/slurm/faults"
    texts = (path.read_text(encoding="utf-8") for path in folder.glob("test_*.py"))
    defined = {name for each in texts for name in re.findall(r"def (test_row_\d\d_\w+)", each)}
    assert {name.partition("[")[0] for name in EXPECTED} == defined


def test_an_answer_that_does_not_name_the_fault_is_shown_with_its_row():
    delay = {"attempt": 1, "cause": "preemption", "text": "x"}
    answer: dict[str, Any] = {"cause": "completed", "text": "x", "delays": [delay]}
    assert problem_of("test_row_02_preemption_with_grace[pgid]", answer) is None
    problem = str(problem_of("test_row_22_hang_of_a_stopped_rank", answer))
    assert "test_row_22" in problem and "must name hang" in problem and "preemption" in problem
    assert problem_of("test_row_38_the_slurmstepd_of_one_node_dies", answer) is not None
    assert problem_of("test_an_array_task_is_requeued_alone", answer) is None
