"""The table of the fault tests: the row of each test, and what `why` must name for it."""

import re
from pathlib import Path
from typing import Any

from tests.slurm.faults.why_rows import EXPECTED, problem_of

REPOSITORY = Path(__file__).resolve().parents[2]


def test_docs_have_a_line_for_each_row_and_each_row_has_a_test():
    text = (REPOSITORY / "docs" / "faults.md").read_text(encoding="utf-8")
    numbers = re.findall(r"^\| (\d+) \|", text.split("\n## The rows\n")[1], re.M)
    texts = (path.read_text(encoding="utf-8") for path in REPOSITORY.glob("tests/**/test_*.py"))
    tested = {int(row) for each in texts for row in re.findall(r"def test_row_(\d\d)_", each)}
    assert numbers == [str(row) for row in sorted(tested | {8})]


def test_each_fault_test_says_what_why_must_name():
    folder = REPOSITORY / "tests/slurm/faults"
    texts = (path.read_text(encoding="utf-8") for path in folder.glob("test_*.py"))
    defined = {name for each in texts for name in re.findall(r"def test_row_(\d\d_\w+)", each)}
    keys = {key.partition("[")[0] for key in EXPECTED}
    assert all(any(name.startswith(key) for key in keys) for name in defined)
    assert all(any(name.startswith(key) for name in defined) for key in keys)


def test_an_answer_that_does_not_name_the_fault_is_shown_with_its_row():
    record = {"attempt": 1, "cause": "preemption", "why": {"kind": "preemption"}}
    answer: dict[str, Any] = {"cause": "completed", "text": "x", "attempts": [record]}
    assert problem_of("test_row_02_preemption_with_grace[pgid]", answer) is None
    problem = str(problem_of("test_row_22_hang_of_a_stopped_rank", answer))
    assert "test_row_22" in problem and "must name hang" in problem and "preemption" in problem
    assert problem_of("test_row_38_the_slurmstepd_of_one_node_dies", answer) is not None
    assert problem_of("test_row_38_the_slurmstepd_of_one_node_dies", None) is None
    assert "no run" in str(problem_of("test_row_22_hang_of_a_stopped_rank", None))
    assert problem_of("test_an_array_task_is_requeued_alone", answer) is None
