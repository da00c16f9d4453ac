"""docs/pitfalls.md names functions and classes that exist."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TEXT = (REPOSITORY / "docs/pitfalls.md").read_text(encoding="utf-8")
PLACES = re.findall(r"`((?:jobs|trainer|slurm)/[\w/.]+)`: `([\w=-]+)`", TEXT)


@pytest.mark.parametrize(("path", "name"), PLACES)
def test_a_place_in_the_code_exists(path, name):
    code = (REPOSITORY / path).read_text(encoding="utf-8")
    if path.endswith(".py") and name != "OMP_NUM_THREADS":
        assert re.search(rf"^ *(def|class) {name}\b|\b{name} *[:=]", code, re.MULTILINE)
    assert re.search(rf"(?<!\w){name}(?!\w)", code)


def test_every_pitfall_has_a_place():
    rows = [row for row in TEXT.splitlines() if row.startswith("|") and "---" not in row]
    rows = [row for row in rows if not row.startswith("| pitfall")]
    assert len(rows) > 25
    assert all(re.search(r"`(jobs|trainer|slurm)/", row) for row in rows)
