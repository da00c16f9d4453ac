"""Fixtures of the tests with real processes."""

import pytest

from tests.local.local_kit import Kit


@pytest.fixture
def kit(tmp_path):
    """A kit whose processes must all have ended when the test has."""
    started = Kit(tmp_path / "runs")
    yield started
    assert started.kill() == [], "processes were left over"
