"""Fixtures of the fault tests: runs, the cluster's settings, the choice of the tests.

A test is named after its row, `test_row_14_...`, and carries the marker `fault` unless its row is
one of the fast ones. Of these the first proctrack is fast; some tests have the marker all the same.
"""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from ..cluster import Cluster
from ..kit import Kit
from .rows import FAST, Row, is_of, row_of
from .scenario import ReferenceRuns

# Slurm's default: the cluster's 10 s may be too short for a save and a decision on a busy machine.
PATIENT = "KillWait=30"
_HERE = Path(__file__).parent
_PASSED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("faults")
    group.addoption("--row", type=int, help="only the tests of this row of the fault table")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mine = [item for item in items if item.path.is_relative_to(_HERE)]
    seen: set[str] = set()
    for item in mine:
        function = item.nodeid.partition("[")[0]
        if row_of(item.name) not in FAST or (function in seen and _has_proctrack(item)):
            item.add_marker(pytest.mark.fault)
        seen.add(function)
    if (row := config.getoption("--row", None)) is not None:
        left = [item for item in mine if is_of(row, item.name, _has_proctrack(item))]
        items[:] = left


def _has_proctrack(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and "proctrack" in item.fixturenames


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_PASSED] = report.passed
    row = getattr(item, "funcargs", {}).get("row")
    if report.failed and isinstance(row, Row):
        report.sections.append(("the run", row.story()))
    return report


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """While this file exists no checkpoint of a run with DISK_FILE becomes durable."""
    return tmp_path / "disk-stands-still"


@pytest.fixture
def proctrack(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """The plugin that decides who receives a signal; parametrise it indirectly."""
    wanted = str(request.param)
    if cluster.site.proctrack != wanted:
        cluster.restart(proctrack=wanted)
    return wanted


@pytest.fixture
def patient_site(cluster: Cluster) -> None:
    cluster.restart(extra_conf=PATIENT)


@pytest.fixture(autouse=True)
def row(request: pytest.FixtureRequest, kit: Kit, reference: ReferenceRuns) -> Iterator[Row]:
    """After the test `why` must name the fault of the run that it shows."""
    mine = Row(request.node.name, kit, reference)
    yield mine
    if request.node.stash.get(_PASSED, False):
        mine.ask_why()
        problem = mine.why_problem()
        assert problem is None, problem
