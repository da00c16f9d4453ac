"""The names in docs/glossary.md exist, and the code uses its words in one meaning only."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from slurm_job_kit.jobs.checkpoint.names import ASIDE_PREFIX, QUARANTINE_PREFIX, checkpoint_name
from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.spec import Spec

REPOSITORY = Path(__file__).resolve().parents[2]
# A module or class with one of these words in its name stands in the entry of that word.
ONE_MEANING = ("agent", "attempt", "job", "plan", "rank", "run", "start", "step", "srun step")
SOURCES = sorted(p for room in ("jobs", "trainer") for p in (REPOSITORY / room).rglob("*.py"))


def entries():
    """Each word of the glossary with the names in backticks of its entry."""
    text = (REPOSITORY / "docs/glossary.md").read_text(encoding="utf-8")
    for entry in re.split(r"^(?=\*\*)", text, flags=re.MULTILINE)[1:]:
        word = entry.removeprefix("**").partition("**")[0]
        yield word, re.findall(r"`([^`]+)`", entry)


ENTRIES = dict(entries())


def module_names():
    """Each module and package of the core, as the glossary writes it: a room may be deleted."""
    for path in (path for path in SOURCES if "rooms" not in path.parts):
        is_package = path.stem == "__init__"
        name = path.parent if is_package else path
        yield str(name.relative_to(REPOSITORY)) + ("/" if is_package else "")


def nodes():
    for path in SOURCES:
        yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))


NODES = list(nodes())
CLASSES = [node.name for node in NODES if isinstance(node, ast.ClassDef)]


def terms_in(name):
    """The words with one meaning in a class's name or in the last part of a module's path."""
    last = Path(name).name.removesuffix(".py")
    words = [word.lower().removesuffix("s") for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", last)]
    text, terms = f" {' '.join(words)} ", []
    for term in sorted(ONE_MEANING, key=len, reverse=True):
        if f" {term} " in text:
            terms.append(term)
            text = text.replace(f" {term} ", " | ")
    return terms


def misplaced(names):
    """The (word, name) pairs whose name does not stand in the glossary's entry of the word."""
    return [(t, name) for name in names for t in terms_in(name) if name not in ENTRIES[t]]


def test_a_word_has_one_meaning_in_the_names_of_modules_and_classes():
    names = [*module_names(), *CLASSES]
    wrong = misplaced(names)
    assert not wrong, f"use another word, or add the name to the entry of its word: {wrong}"
    twice = [name for name, count in Counter(names).items() if count > 1 and terms_in(name)]
    assert twice == []


@pytest.mark.parametrize("name", ["Plan", "RunPlan", "TrainingStep", "trainer/model/jobs.py"])
def test_a_new_name_with_such_a_word_is_noticed(name):
    assert misplaced([name])


def run_files():
    """The path of each file of a run directory, with numbers as #."""
    run = RunDir(Path("RUN"))
    attempt = run.attempt(1)
    for folder in (run, attempt):
        for name in vars(type(folder)):
            if not name.startswith("_") and name not in ("attempt", "path", "run_id"):
                member = getattr(folder, name)
                path = member if isinstance(member, Path) else member(0)
                yield numbered(str(path.relative_to(run.path)))
    checkpoint = checkpoint_name(1)
    yield numbered(f"{attempt.path.name}/")
    yield numbered(f"checkpoints/{checkpoint}/")
    yield numbered(f"checkpoints/{ASIDE_PREFIX}{checkpoint}/")
    yield numbered(f"checkpoints/{QUARANTINE_PREFIX}{checkpoint}/REASON")


def numbered(path):
    return re.sub(r"\d+|\bK\b|N{5}|R{5}|X{8}", "#", path)


# Each name of a class, function, variable, argument or attribute, and each string.
IN_CODE = {value for node in NODES for value in vars(node).values() if isinstance(value, str)}
RUN_FILES = {*run_files()}


def exists(name):
    """Whether a file of the repository or of a run, a spec key or a name of the code exists."""
    section, _, key = name.partition(".")
    if re.fullmatch(r"[a-z]+\.[a-z_]+", name) and hasattr(Spec(), section):
        return hasattr(getattr(Spec(), section), key)
    if re.fullmatch(r"[A-Z]+[a-z]\w*", name):
        return name in CLASSES
    if re.fullmatch(r"[\w.]+", name) and not name.endswith((".md", ".json", ".jsonl")):
        return all(part in IN_CODE for part in name.split("."))
    return numbered(name) in RUN_FILES or any(REPOSITORY.glob(name))


# Commands, command-line options and patterns; tests/repository/test_readme.py checks the commands.
NO_NAME = re.compile(r"make |scontrol |attempt open|--|KEY=VALUE|local-|\.owner-after-|<runs_root>")


@pytest.mark.parametrize(
    ("word", "name"),
    [(word, name) for word, names in ENTRIES.items() for name in names if not NO_NAME.match(name)],
)
def test_a_name_in_the_glossary_exists(word, name):
    assert exists(name), f"{word}: there is no {name}"


@pytest.mark.parametrize(
    "name",
    [
        *("jobs/node/no_such.py", "NoSuchClass", "no_such_function", "slurm.no_such_key"),
        *("attempt-K/no_such.json", "no_such.json", "docs/no_such.md", "tests/no_such/*.py"),
    ],
)
def test_a_name_that_does_not_exist_is_noticed(name):
    assert not exists(name)
