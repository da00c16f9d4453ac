"""The bench that counts samples gives the right count; no test asserts a time."""

import pytest

from slurm_job_kit.jobs.rundir import read_json
from tests.bench.__main__ import main


@pytest.mark.slow
@pytest.mark.room("samples")
def test_no_sample_comes_twice_or_is_missing_after_stops_at_any_step(tmp_path):
    path = tmp_path / "bench.json"
    assert main(["samples", "--json", str(path)]) == 0
    (bench,) = read_json(path)["benches"]
    figures = [(figure["value"], figure["verdict"]) for figure in bench["figures"]]
    assert figures == [(0, "yes"), (0, "yes")]
