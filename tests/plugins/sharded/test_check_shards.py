"""The check of a run before the queue: large models, and models that ranks divide."""

from tests.plugins.check.test_parts import check as check
from tests.plugins.check.test_parts import of


def test_a_model_of_more_than_a_gibibyte_gets_no_memory(check):
    assert check(of(model="mine:Net", model_args={"hidden": 2 * 10**6})) is None


def test_more_shards_than_rows_are_an_error(check):
    """Net has ten rows in its last layer, so a thirteenth rank would have none."""
    train = of(strategy="fsdp", model="mine:Net", micro_batch_size=1)
    assert check(train, world_size=10) is None
    level, key, text = check(train, world_size=13)
    assert (level, key) == ("error", "train.strategy")
    assert "13 shards are too many for train.model mine:Net: the longest" in text
