"""The editor's schema and the generated tables of the docs match the code."""

import json
from functools import lru_cache

import pytest

from slurm_job_kit.jobs.config.keys import keys
from slurm_job_kit.jobs.plugins.schema import __main__ as schema

REMAKE = "run make schema"
CONFIGS = sorted((schema.ROOT / "configs").glob("*.yaml"))


@lru_cache
def tree():
    return json.loads(schema.schema())


def test_the_schema_file_is_in_step_with_the_dataclasses():
    assert schema.SCHEMA.read_text(encoding="utf-8") == schema.schema(), REMAKE


def test_the_tables_of_keys_are_those_of_the_code():
    text = schema.REFERENCE.read_text(encoding="utf-8")
    assert text == schema.with_tables(text, schema.reference()), REMAKE


def test_every_key_has_one_line_of_description():
    for key in keys().values():
        assert key.description and not {"\n", "|"} & {*key.description}, key.dotted


def test_the_schema_knows_each_default_and_refuses_unknown_keys():
    for key in keys().values():
        node = tree()
        for name in key.path:
            node = node["properties"][name]
            if "$ref" in node:
                node = tree()["definitions"][node["$ref"].rpartition("/")[2]]
        assert isinstance(key.default, (list, dict)) or node["default"] == key.default
    for node in (tree(), *tree()["definitions"].values()):
        assert node["additionalProperties"] is False


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_each_config_names_the_schema_for_editors(config):
    first = config.read_text(encoding="utf-8").splitlines()[0]
    assert first == "# yaml-language-server: $schema=schema.json"
