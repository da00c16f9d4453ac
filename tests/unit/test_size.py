"""The brake: what users and maintainers have to know is counted, and grows only with a reason."""

import re
import tomllib
from pathlib import Path

import pytest

from slurm_job_kit.jobs.commands.parser import COMMANDS
from slurm_job_kit.jobs.config.keys import keys
from tests.unit.test_layout import FILES, FOLDERS, REPOSITORY

SIZE = Path(__file__).with_name("size.toml")
AGREED = tomllib.loads(SIZE.read_text(encoding="utf-8"))
MAKEFILES = ("Makefile", "slurm_job_kit/templates/kit.mk")


def make_targets():
    """The targets that `make` lists."""
    text = "\n".join((REPOSITORY / name).read_text(encoding="utf-8") for name in MAKEFILES)
    return re.findall(r"^([a-z0-9-]+):.*## ", text, re.MULTILINE)


# A command has a target and a module of its own name: it is counted once.
OF_COMMANDS = {f"jobs.commands.{name}" for name in COMMANDS}
COUNTED = {
    "spec_keys": [key.dotted for key in keys().values()],
    "commands": list(COMMANDS),
    "make_targets": [name for name in make_targets() if name not in COMMANDS],
    "rooms": [name for name in FOLDERS if name.count(".") == 1],
    "modules": [name for name in FILES if name not in {*FOLDERS, *OF_COMMANDS} and "." in name],
}


@pytest.mark.parametrize("kind", COUNTED)
def test_the_kit_grows_only_with_the_question_of_a_user(kind):
    names, added = COUNTED[kind], AGREED[kind]["added"]
    assert len(names) == AGREED[kind]["number"] + len(added), f"see the first lines of {SIZE.name}"
    assert {*added} <= {*names}
    assert all(question.endswith("?") for question in added.values())


def test_each_count_has_an_agreed_number():
    assert {*AGREED} == {*COUNTED}
