"""The direction of dependencies: what may import what."""

import ast
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
MODULES = {
    f"{package}.{path.stem}".removesuffix(".__init__"): path
    for package in ("jobs", "trainer")
    for path in (REPOSITORY / package).glob("*.py")
}
OWN = ("jobs", "trainer")
# They run on compute nodes and hosts where there is a Python and perhaps nothing else.
STANDARD_LIBRARY_ONLY = [
    f"jobs.{name}"
    for name in (
        *("spec", "rundir", "agent", "node_agent", "rank", "attempt", "history"),
        *("owner", "decision", "rendezvous", "slurm", "memory", "purged"),
    )
]


def imports(module):
    """The modules that a module of ours imports, wherever it does, but for type checkers."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from [name for name in inner if name in MODULES] or [node.module]


def reached(module):
    """All that a module imports, through modules of ours, too."""
    seen, open_ends = set(), [module]
    while open_ends:
        for name in imports(open_ends.pop()):
            if name not in seen:
                seen.add(name)
                open_ends += [name] if name in MODULES else []
    return seen


def foreign(names):
    tops = {name.partition(".")[0] for name in names}
    return tops - sys.stdlib_module_names - set(OWN)


def test_the_walk_sees_imports():
    assert {"jobs.spec", "argparse"} <= set(imports("jobs.attempt"))
    assert "submitit.core.utils" in set(imports("jobs.submit"))
    assert "torch" in reached("trainer.__main__")


@pytest.mark.parametrize("module", sorted(name for name in MODULES if name.startswith("jobs")))
def test_jobs_imports_neither_torch_nor_the_trainer(module):
    found = reached(module)
    assert "torch" not in foreign(found)
    assert not [name for name in found if name.partition(".")[0] == "trainer"]


@pytest.mark.parametrize("module", sorted(name for name in MODULES if name.startswith("trainer")))
def test_the_trainer_imports_of_jobs_only_spec_and_rundir(module):
    of_jobs = {name for name in imports(module) if name.partition(".")[0] == "jobs"}
    assert of_jobs <= {"jobs.spec", "jobs.rundir"}


@pytest.mark.parametrize("module", STANDARD_LIBRARY_ONLY)
def test_what_runs_on_any_node_needs_the_standard_library_only(module):
    assert foreign(reached(module)) == set()
