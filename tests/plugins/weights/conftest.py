"""A trained run, from the tests of checkpoints."""

from tests.core.checkpoint.conftest import trained as trained
