"""The examples in configs/."""

from pathlib import Path

import pytest

from slurm_job_kit.jobs.config.load import load

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.mark.parametrize("config", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_an_example_is_valid_and_frozen_as_it_is(config):
    loaded = load(config, is_frozen=config.stem == "sweep")
    assert loaded.spec.name == config.stem
    assert loaded.text == config.read_text(encoding="utf-8")
