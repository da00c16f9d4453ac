"""A range of nodes in a spec."""

import pytest

REFUSED = {
    "slurm: {nodes: 8-6}": "slurm.nodes: 8-6 is backwards\n  hint: write 6-8",
    "slurm: {nodes: 2-4}": "train.global_batch_size: is needed with slurm.nodes 2-4, so that",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_range_that_cannot_train_is_refused(refuse_one, text):
    refuse_one(text, REFUSED[text])
