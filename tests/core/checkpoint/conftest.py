"""A trained run for the tests of exports and of initial weights."""

import pytest

from tests.core.checkpoint.checkpoint_kit import job_of, replica_of, save, train


@pytest.fixture
def trained(tmp_path):
    """A run directory with two checkpoints of which the older one is the best, and its replica."""
    context, replica = job_of(tmp_path / "trained"), replica_of()
    best = {"metric": "eval_loss", "value": 1.0, "step": 6}
    save(context, replica, 6, best=best)
    train(replica)
    save(context, replica, 9, best=best)
    return context.run.dir, replica
