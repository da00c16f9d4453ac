"""What pip installs: the extras of pyproject.toml, and the exact versions of the locks."""

import re
import tomllib
from pathlib import Path

from slurm_job_kit.jobs.base.packages import COMMANDS, EXTRAS

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def names(texts):
    """The packages of requirements, in one spelling."""
    return {re.split(r"[<>=\[; ]", each)[0].lower().replace("_", "-") for each in texts}


def test_the_extras_that_messages_name_are_those_of_the_project():
    extras = PROJECT["optional-dependencies"]
    assert {name: names(packages) for name, packages in EXTRAS.items()} == {
        name: names(extras[name]) for name in EXTRAS
    }
    assert names(PROJECT["dependencies"]) == {*COMMANDS}


def test_two_locks_have_all_extras():
    locks = {path.name: path.read_text().splitlines() for path in REPOSITORY.glob("*.lock")}
    locks.pop("uv.lock", None)  # of `uv run` in a clone, which git ignores
    assert {*locks} == {"requirements.lock", "requirements-dev.lock"}
    extras = {key: names(each) for key, each in PROJECT["optional-dependencies"].items()}
    del extras["gpu"]  # optional where there are GPUs
    of_clone = {*COMMANDS}.union(*(extras.pop(name) for name in ("train", "examples", "report")))
    assert of_clone <= names(locks["requirements.lock"])
    assert set().union(*extras.values()) <= names(sum(locks.values(), []))
