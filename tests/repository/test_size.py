"""The brake: product and tests have at most as many lines as tests/size.toml says.

`python -m tests.repository.test_size` prints the lines and the statements of each plugin, too.
"""

import ast
import functools
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LIMITS = tomllib.loads((REPOSITORY / "tests/size.toml").read_text(encoding="utf-8"))
FOLDERS = {"product": ("jobs", "trainer", "slurm", "slurm_job_kit"), "tests": ("tests",)}
CODE = {".py", ".sh", ".sbatch", ".mk", ".c"}


def statement_lines(text):
    """The number of lines on which a part of a statement begins or ends, without imports."""
    lines = set()
    nodes = [*ast.parse(text).body]
    while nodes:
        node = nodes.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)) or is_docstring(node):
            continue
        lines |= {getattr(node, name) for name in ("lineno", "end_lineno") if hasattr(node, name)}
        nodes += ast.iter_child_nodes(node)
    return len(lines)


def is_docstring(node):
    """Whether a statement is a string alone."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text and isinstance(node.value.value, str)


def plugin(path):
    """The plugin of a file; what is in no plugin is core."""
    return path.parts[2] if len(path.parts) > 3 and path.parts[1] == "plugins" else "core"


@functools.cache
def counted(folders):
    """The lines and the statement lines of each plugin in folders."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for folder in folders:
        for path in (REPOSITORY / folder).rglob("*"):
            if path.suffix in CODE and "__pycache__" not in path.parts:
                text = path.read_text(encoding="utf-8")
                count = counts[plugin(path.relative_to(REPOSITORY))]
                count["lines"] += len(text.splitlines())
                count["statements"] += statement_lines(text) if path.suffix == ".py" else 0
    return counts


@pytest.mark.parametrize("part", FOLDERS)
@pytest.mark.parametrize("measure", ["lines", "statements"])
def test_the_code_only_shrinks(part, measure):
    there_are = sum(count[measure] for count in counted(FOLDERS[part]).values())
    assert there_are <= LIMITS[part][measure], "delete as much as was added: tests/size.toml"


def main():
    """Print the lines and statement lines of product and tests, whole and by plugin."""
    for part, folders in FOLDERS.items():
        counts = counted(folders)
        for measure in ("lines", "statements"):
            total = sum(count[measure] for count in counts.values())
            print(f"{part} {measure} {total} of at most {LIMITS[part][measure]}")
        for name, count in sorted(counts.items(), key=lambda pair: -pair[1]["lines"]):
            print(f"  {name} {count['lines']} {count['statements']}")


if __name__ == "__main__":
    main()
