"""Initial weights that rank 0 of another host has just saved."""

import pytest

from slurm_job_kit.trainer.rooms.weights import initial
from tests.core.checkpoint.checkpoint_kit import replica_of, save
from tests.core.checkpoint.test_two_hosts import NAMES
from tests.core.checkpoint.test_two_hosts import here as here
from tests.core.checkpoint.test_two_hosts import there as there
from tests.core.two_hosts import look

pytestmark = pytest.mark.usefixtures("process_group")


def test_a_run_begins_from_the_weights_that_another_host_has_just_saved(here, there):
    look(there.run.dir.path, *NAMES, "manifest.json")
    save(here, replica_of(), 6)
    with initial.open_weights(there.run.dir.path) as weights_read:
        assert weights_read.shapes
