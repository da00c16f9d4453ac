"""One Slurm cluster for all tests of this folder; a test that fails shows the cluster's state."""

import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from .cluster import Cluster, why_not
from .faults.scenario import ReferenceRuns
from .host import IS_SITE
from .kit import Kit
from .user_cluster import cluster_at, root_of_this_process


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster of four nodes that all tests share; _clean_cluster resets it after each test."""
    if reason := why_not():
        if os.environ.get("REQUIRE_SLURM") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    shared = cluster_at(root_of_this_process("test"))
    shared.start()
    yield shared
    shared.stop()
    shutil.rmtree(shared.root)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """pytest's folder for the test, or another one that all machines of the cluster share."""
    if not IS_SITE or "cluster" not in request.fixturenames:
        yield tmp_path
        return
    cluster: Cluster = request.getfixturevalue("cluster")
    before = os.umask(0)  # users of the cluster write into the folders that the test makes
    yield cluster.tmp_path(tmp_path)
    os.umask(before)


@pytest.fixture
def kit(cluster: Cluster, tmp_path: Path) -> Kit:
    """The kit's commands on the cluster, with a runs root of the test."""
    return Kit(cluster, tmp_path)


@pytest.fixture(scope="session")
def reference(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> ReferenceRuns:
    """`reference(*overrides)`: the reference run without faults, trained once in a session."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all workers, unless their clusters share no files
    return ReferenceRuns(Kit(cluster, cluster.tmp_path(folder / "reference")))


@pytest.fixture(autouse=True)
def _clean_cluster(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test: no job, no process, all nodes up and connected, the first settings."""
    yield
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").reset()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    cluster = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and report.when != "teardown" and cluster is not None:
        report.sections.append(("state of the Slurm cluster", cluster.state()))
    return report
