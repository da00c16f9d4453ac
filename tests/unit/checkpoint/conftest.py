"""A trained run for the tests of exports and of initial weights."""

import pytest

from slurm_job_kit.trainer.checkpoint.checkpoints import Checkpoints
from tests.unit.checkpoint.checkpoint_kit import BATCHES, job_of, replica_of, state_at, train


@pytest.fixture
def trained(tmp_path):
    """A run directory with two checkpoints of which the older one is the best, and its replica."""
    context, replica = job_of(tmp_path / "trained"), replica_of()
    checkpoints = Checkpoints(context, BATCHES)
    checkpoints.save(replica, state_at(6, best={"metric": "eval_loss", "value": 1.0, "step": 6}))
    train(replica)
    best = {"metric": "eval_loss", "value": 1.0, "step": 6}
    checkpoints.save(replica, state_at(9, best=best))
    checkpoints.finish(lambda: None)
    return context.run.dir, replica
