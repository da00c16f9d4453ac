"""The brake: the lines of the core, of rooms and of tests have a limit, and more fails."""

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LIMITS = tomllib.loads((REPOSITORY / "tests/size.toml").read_text(encoding="utf-8"))
PRODUCT = ("jobs", "trainer", "slurm", "slurm_job_kit")
CODE = {".py", ".sh", ".sbatch", ".mk", ".c"}
RAISE = re.compile(r"\+(\d+): deleted \w.+")


def lines(folder):
    return {
        path.relative_to(REPOSITORY): len(path.read_text(encoding="utf-8").splitlines())
        for path in (REPOSITORY / folder).rglob("*")
        if path.suffix in CODE and "__pycache__" not in path.parts
    }


def room(path):
    """The room of a file; what is in no room is core."""
    return path.parts[2] if len(path.parts) > 3 and path.parts[1] == "rooms" else "core"


def counted():
    counts: Counter[str] = Counter()
    for package in PRODUCT:
        for path, number in lines(package).items():
            counts[room(path)] += number
    of_rooms = Path("tests/rooms")
    tests = sum(n for path, n in lines("tests").items() if of_rooms not in path.parents)
    return {**counts, "tests": tests}


def limit(entry):
    """A number, or a list of one and of raises, each with what was deleted for it."""
    number, *raises = entry if isinstance(entry, list) else [entry]
    return number + sum(int(RAISE.sub(r"\1", text)) for text in raises)


COUNTED = counted()


@pytest.mark.parametrize("name", [name for name in COUNTED if name in LIMITS])
def test_no_room_is_longer_than_agreed(name):
    assert COUNTED[name] <= limit(LIMITS[name]), f"see the first lines of tests/size.toml: {name}"
