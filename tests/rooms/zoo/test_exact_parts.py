"""A stopped run with the zoo's parts ends bitwise equal to the reference run."""

import pytest

from tests.local.stop_plans import ZOO
from tests.local.test_exact import RANKS, assert_equal, findings


@pytest.mark.slow
def test_stopped_runs_with_parts_of_the_zoo_end_with_the_bits_of_the_reference_run(tmp_path):
    for found in findings(tmp_path, RANKS, ZOO).values():
        assert_equal(found["runs"])
