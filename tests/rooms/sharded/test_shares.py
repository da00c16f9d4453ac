"""Under fsdp no rank reads or holds more of a checkpoint than its share and a buffer."""

import sys

import pytest

from slurm_job_kit.jobs.rundir import read_json
from tests.local.test_trainer import end, environment, start

pytestmark = pytest.mark.slow
PROGRAM = "from tests.rooms.sharded import shares; shares.main()"
RANKS = 3
PARAMETERS = 12 * (1024 * 1024 + 1024) + 36 * 1024 + 1024
SHARE = 3 * 4 * PARAMETERS / RANKS  # weights and two moments in fp32
BUFFER = 16 * 2**20


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """For each rank the bytes of two loads: of what one rank has saved, and of what all have."""
    folder = tmp_path_factory.mktemp("shares")
    command = [sys.executable, "-c", PROGRAM, str(RANKS), str(folder)]
    status, output = end(start(command, environment(1)), 300)
    assert status == 0, output
    return [read_json(folder / f"found-{rank}.json") for rank in range(RANKS)]


def test_a_rank_reads_its_share(found):
    for of_one, of_all in found:
        assert 0.9 * SHARE < of_all["read"] < SHARE + BUFFER / 8
        # The blocks at both ends of its rows are read as a whole.
        assert 0.9 * SHARE < of_one["read"] < SHARE + BUFFER


def test_a_rank_holds_its_share(found):
    for loads in found:
        for load in loads:
            # The weights are there before the load.
            assert load["rise"] < 2 / 3 * SHARE + BUFFER
