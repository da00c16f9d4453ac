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
        assert all((REPOSITORY / word).exists() for word in words if "/" in word)
    elif program == "kit":
        parse(words)
    elif words[:2] == ["-m", "jobs"] and not set("|[") & set(command):
        parse(words[2:])


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


def test_the_readme_is_short_and_agrees_with_what_it_names():
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 110
    spec = (REPOSITORY / "configs/resnet.yaml").read_text(encoding="utf-8").splitlines()
    [block] = re.findall(r"```yaml\n(.*?)```", readme, re.DOTALL)
    assert {line.partition(" #")[0] for line in block.splitlines()} <= {*spec}
    assert all((REPOSITORY / path).exists() for path in re.findall(r"`(\w+/[\w./]+)`", readme))
    picture = (REPOSITORY / "docs/preempted.svg").read_text(encoding="utf-8")
    assert len(picture) <= 150_000 and "preempt" in picture and "bitwise equal" in picture
    verdicts = (REPOSITORY / "docs/verdicts.md").read_text(encoding="utf-8").partition("\n## The f")
    rows = re.findall(r"^\| [\w -]+(?:,.*?)? \| (no|yes)\b", verdicts[0], re.MULTILINE)
    assert (len(rows), rows.count("no")) == (10, 8) and "ten public trainers eight" in readme


def test_each_command_of_a_user_has_a_row():
    page = (REPOSITORY / "docs/commands.md").read_text(encoding="utf-8")
    assert {*all_commands(), *TARGETS} == {*re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)}


def test_links_lead_to_files():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_list_of_plugins_is_the_one_of_the_kit():
    page = (REPOSITORY / "docs/architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", page.partition("| plugin |")[2], re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"\w+", row)} == {*PLUGINS}
