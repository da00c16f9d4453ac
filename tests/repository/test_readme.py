"""Every command of README.md and docs/ exists in the kit with all plugins, with these options."""

import re
import shlex
from pathlib import Path

import pytest

from slurm_job_kit.jobs.commands.catalogue import all_commands, parse
from slurm_job_kit.jobs.commands.make_words import TARGETS, make_variables
from slurm_job_kit.jobs.plugins import PLUGINS

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("slurm/*.md"), *REPOSITORY.glob("configs/*.md")]
PAGES += sorted((REPOSITORY / "docs").glob("*.md"))
MAX_LINES = 110


def commands():
    """Each command line in a code span or a console block, with the page that has it."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        spans = re.findall(r"`((?:make|sbatch|kit|pip|\S*python) [^`]+)`", text)
        blocks = re.findall(r"^\$ (.+?)(?:\s+#.*)?$", text, re.MULTILINE)
        for command in dict.fromkeys([*spans, *blocks]):
            yield pytest.param(command, id=f"{page.name}: {command}")


@pytest.mark.parametrize("command", list(commands()))
def test_a_command_in_the_docs_exists(command):
    program, *words = shlex.split(command.replace("...", "x"))
    if program == "make":
        check_make(words)
    elif program == "sbatch":
        check_files(words)
    elif program == "kit":
        check_arguments(words)
    elif words[:2] == ["-m", "jobs"] and not set("|[") & set(command):
        check_arguments(words[2:])


def check_make(words):
    names = re.findall(r"^([A-Z_]+)=", "\n".join(words), re.MULTILINE)
    if words[0] in {*TARGETS, *all_commands()}:
        assert {*names} <= {*" ".join(make_variables(words[0])).replace("...", "").split()}
        return
    files = [REPOSITORY / "Makefile", *REPOSITORY.glob("jobs/plugins/*/*.mk")]
    makefile = "\n".join(path.read_text(encoding="utf-8") for path in files)
    assert re.search(rf"^{words[0]}:", makefile, re.MULTILINE)
    for name in names:
        assert re.search(rf"\b{name}\b", makefile), f"the Makefile does not use {name}"


def check_files(words):
    files = [word for word in words if not word.startswith("-") and "=" not in word]
    assert all((REPOSITORY / name).exists() for name in files if "/" in name)


def check_arguments(words):
    if len(words) > 1:
        parse(words)
    elif words and words != ["COMMAND"]:
        with pytest.raises(SystemExit) as ended:
            parse([*words, "--help"])
        assert ended.value.code == 0


def test_the_readme_is_short():
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_links_lead_to_files():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_list_of_plugins_is_the_one_of_the_kit():
    page = (REPOSITORY / "docs/architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", page.partition("| plugin |")[2], re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"\w+", row)} == {*PLUGINS}
