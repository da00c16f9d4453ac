"""The benches that count give the right counts; no test asserts a time."""

import pytest

from slurm_job_kit.jobs.rundir import read_json
from tests.bench.__main__ import main


def figures(tmp_path, name):
    """The figures of one bench by name, from its JSON file."""
    path = tmp_path / "bench.json"
    assert main([name, "--json", str(path)]) == 0
    (bench,) = read_json(path)["benches"]
    return [(figure["value"], figure["verdict"]) for figure in bench["figures"]]


@pytest.mark.slow
def test_the_host_waits_for_the_device_in_steps_that_log_and_in_no_other(tmp_path):
    assert figures(tmp_path, "device_syncs") == [(0, "yes"), (1, None)]


@pytest.mark.slow
def test_no_sample_comes_twice_or_is_missing_after_stops_at_any_step(tmp_path):
    assert figures(tmp_path, "samples") == [(0, "yes"), (0, "yes")]
