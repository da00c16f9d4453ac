"""One Slurm cluster for all tests of this folder; a test that fails shows the cluster's state."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .cluster import Cluster, why_not

# Short, for the unix sockets below it; every node sees /tmp.
_TMP = Path("/tmp")
_PREFIX = "slurm-test-"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster of four nodes that all tests share; _clean_cluster resets it after each test."""
    if reason := why_not():
        if os.environ.get("REQUIRE_SLURM") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    _remove_leftovers()
    shared = Cluster(_TMP / f"{_PREFIX}{os.getpid()}")
    shared.start()
    yield shared
    shared.stop()
    shutil.rmtree(shared.root)


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


def _remove_leftovers() -> None:
    """Ends the clusters of test runs that were killed: the number in the name is their pid."""
    with _alone():  # several pytest processes start at once, and would remove the same cluster
        for root in _TMP.glob(f"{_PREFIX}*"):
            pid = root.name.removeprefix(_PREFIX)
            if root.lstat().st_uid == os.geteuid() and not Path("/proc", pid).exists():
                Cluster(root).stop()
                shutil.rmtree(root)


@contextmanager
def _alone() -> Iterator[None]:
    """A block that one process of this machine is in at a time."""
    folder = os.open(_TMP, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
