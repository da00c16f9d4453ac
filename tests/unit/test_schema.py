"""The editor's schema and the README's table say what the dataclasses say."""

import json
from pathlib import Path

import pytest

from jobs import schema
from jobs.spec_keys import keys

REMAKE = "run python -m jobs.schema"
CONFIGS = sorted((schema.ROOT / "configs").glob("*.yaml"))


def property_of(key):
    tree = json.loads(schema.schema())
    node = tree
    for name in key.path:
        node = node["properties"][name]
        if "$ref" in node:
            node = tree["definitions"][node["$ref"].rpartition("/")[2]]
    return node


def test_the_schema_file_is_in_step_with_the_dataclasses():
    assert schema.SCHEMA.read_text(encoding="utf-8") == schema.schema(), REMAKE


def test_the_table_in_the_readme_is_in_step_with_the_dataclasses():
    assert schema.README.exists(), "README.md with the markers of the table is missing"
    readme = schema.README.read_text(encoding="utf-8")
    assert readme == schema.with_table(readme), REMAKE


def test_every_key_has_one_line_of_description_in_both():
    table = schema.table()
    for key in keys().values():
        assert key.description, key.dotted
        assert "\n" not in key.description
        assert "|" not in key.description
        assert table.count(f"| `{key.dotted}` |") == 1
        assert property_of(key)["description"] == key.description


def test_the_schema_knows_each_default_and_refuses_unknown_keys():
    for key in keys().values():
        if not isinstance(key.default, (list, dict)):
            assert property_of(key)["default"] == key.default
    tree = json.loads(schema.schema())
    for node in (tree, *tree["definitions"].values()):
        assert node["additionalProperties"] is False


def test_the_schema_takes_the_numbers_that_load_takes_as_text():
    args = property_of(keys()[("launch", "args")])
    assert args["items"] == {"type": ["string", "number", "boolean"]}


def test_references_of_the_schema_lead_somewhere():
    tree = json.loads(schema.schema())
    for name in ("slurm", "launch", "train"):
        reference = tree["properties"][name]["$ref"]
        assert reference.removeprefix("#/definitions/") in tree["definitions"]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_each_config_names_the_schema_for_editors(config: Path):
    first = config.read_text(encoding="utf-8").splitlines()[0]
    assert first == "# yaml-language-server: $schema=schema.json"


def test_only_the_text_between_the_markers_is_written_anew():
    readme = f"before\n{schema.BEGIN}\nold\n{schema.END}\nafter\n"
    fresh = schema.with_table(readme)
    assert fresh == f"before\n{schema.BEGIN}\n{schema.table()}\n{schema.END}\nafter\n"
    assert schema.with_table(fresh) == fresh


@pytest.mark.parametrize("readme", ["", "no markers", f"{schema.BEGIN} only"])
def test_a_readme_without_markers_is_refused(readme):
    with pytest.raises(ValueError, match="lacks the lines"):
        schema.with_table(readme)
