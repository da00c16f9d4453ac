"""docs/timeouts.md lists every time limit of the code, with its number."""

import ast
import re
from datetime import timedelta
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def limits_in_code():
    """(file, name, numbers) of each module-level constant that is a time."""
    for path in sorted(
        p for package in ("jobs", "trainer") for p in (REPOSITORY / package).rglob("*.py")
    ):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
                continue
            name = node.targets[0].id
            if name.isupper() and (name.endswith(("_S", "_TIMEOUT"))):
                if isinstance(node.value, ast.DictComp):  # its values are in another table of docs/
                    continue
                value = eval(ast.unparse(node.value), {"timedelta": timedelta})
                if isinstance(value, timedelta):
                    value = value.total_seconds()
                numbers = value if isinstance(value, tuple) else (value,)
                yield str(path.relative_to(REPOSITORY)), name, tuple(map(float, numbers))


def limits_in_docs():
    text = (REPOSITORY / "docs/timeouts.md").read_text(encoding="utf-8")
    for name, numbers, path in re.findall(
        r"^\| `(\w+)` \| ([\d., ]+) \| `([\w/.]+)` \|", text, re.M
    ):
        yield path, name, tuple(float(number) for number in numbers.split(","))


def test_every_time_limit_stands_in_the_docs_with_its_number():
    assert sorted(limits_in_docs()) == sorted(limits_in_code())
    assert len(list(limits_in_code())) > 40
