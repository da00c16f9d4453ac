"""Of make's variables only those on its command line count, in a clone and by the file of init."""

import contextlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_job_kit.jobs.base import installation
from slurm_job_kit.jobs.base.errors import UserError
from slurm_job_kit.jobs.commands import make_words
from slurm_job_kit.jobs.commands.catalogue import all_commands, load

ROOT = Path(__file__).resolve().parents[2]
KIT_MK = installation.PACKAGE / "kit.mk"
# In place of the kit: prints the words that the kit would read, and the names that it would leave.
KIT = f"""#!{sys.executable}
import sys
sys.path.insert(0, {str(ROOT)!r})
import os
from slurm_job_kit.jobs.commands.make_words import words_of
print("ran", words_of(sys.argv[-1]))
print("left", sorted(os.environ))
"""
CHANGES = pytest.mark.plugin("changes")  # which has these variables
# What some other program may have left in the user's shell.
SHELL = {"YES": "1", "SET": "train.lr=9", "RUN": "other", "FLAGS": "--wrong", "CONFIG": "other"}


@pytest.fixture(params=["clone", "kit.mk", "included"])
def make(request, tmp_path):
    """`make(words, environ)` by the Makefile of a clone, or by kit.mk, of a user's Makefile too."""
    kit = tmp_path / "bin/kit"
    kit.parent.mkdir()
    kit.write_text(KIT)
    kit.chmod(0o755)
    ours = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", *SHELL)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    inherited["PATH"] = f"{kit.parent}:{inherited['PATH']}"
    (tmp_path / "Makefile").write_text(f"FLAGS := -O2\ninclude {KIT_MK}\n")
    command, folder = {
        "clone": (["make", f"PY={kit}", "READY="], ROOT),
        "kit.mk": (["make", "-f", str(KIT_MK)], tmp_path),
        "included": (["make"], tmp_path),
    }[request.param]

    def run(*words, environ=None):
        env = inherited | (environ or {})
        argv = [*command, *words]
        done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("flags", [[], ["-e"]])
def test_a_variable_of_the_shell_or_of_a_makefile_does_not_count(make, flags):
    assert "ran ['resume']" in make(*flags, "resume", environ=SHELL)


def test_what_is_typed_reaches_the_command_unchanged_but_not_the_run(make):
    text = "a='$$b' c\\d $(shell echo no)"
    ran, left = make("submit", "CONFIG=~/x", f"SET={text}", "FLAGS=--json").splitlines()
    assert ran == f"ran {['submit', '~/x', f'--set={text}', '--json']}"
    assert not {"YES", "SET", "CONFIG", "FLAGS", "MAKEFLAGS"} & set(eval(left.partition(" ")[2]))


def test_another_python_or_torch_gets_an_environment_beside_the_usual_one():
    argv = ["make", "--dry-run", "test-here", "PYTHON=python0", "TORCH=0.1"]
    env = os.environ | {"MAKEFLAGS": "", "VIRTUAL_ENV": sys.prefix}
    run = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert "python0 -m venv .venv-python0-torch-0.1 " in run.stdout
    assert ".venv-python0-torch-0.1/bin/python -m pytest " in run.stdout
    assert run.stdout.count("s/^torch==.*/torch==0.1/' requirements") == 2


def of_make():
    """The commands that have a target of their name."""
    return [name for name in all_commands() if hasattr(load(name), "MAKE")]


def words_of(target, *typed):
    quoted = (word.replace(" ", "\\ ") for word in typed)
    return make_words.words_of(target, {"KIT_TYPED": " ".join(quoted)})


@pytest.mark.parametrize(
    ("target", "typed", "expected"),
    [
        ("dry-run", ["CONFIG=x"], ["submit", "--dry-run", "x"]),
        pytest.param(
            *("explain", ["CONFIG=x", "KEY=train"], ["explain", "train", "x"]),
            marks=pytest.mark.plugin("explain"),
        ),
        ("cancel", ["RUN=a b"], ["cancel", "a b"]),
        pytest.param("resume", ["YES=0"], ["resume"], marks=CHANGES),
        pytest.param("resume", ["YES=yes"], ["resume", "--yes"], marks=CHANGES),
        (
            "submit",
            ["CMD=python 'a b.py' --lr 1"],
            ["submit", "--", "python", "a b.py", "--lr", "1"],
        ),
        ("resume", ["FLAGS=-f --rank 2"], ["resume", "-f", "--rank", "2"]),
        ("resume", ["RUN="], ["resume"]),
    ],
)
def test_a_target_becomes_a_command(target, typed, expected):
    assert words_of(target, *typed) == expected


@pytest.mark.parametrize(
    ("target", "typed", "text"),
    [
        pytest.param("resume", ["YES=maybe"], "YES=maybe: write YES=1 or YES=0", marks=CHANGES),
        ("submit", ["CONFIG=x", "CODE=1"], "make submit takes no CODE=..."),
        ("submit", ["CONFIG=x", "STE=a=1"], "it takes CONFIG, SET, "),
        ("submit", [], "CONFIG=... or CMD=... is missing\n  hint: make submit CONFIG=configs/NAME"),
        ("sumbit", [], "make has no target sumbit\n  hint: did you mean make submit?"),
        ("", [], "make has no target \n  hint: make lists the targets"),
        ("cancel", ["RUN="], "RUN=... is missing"),
        ("resume", ["FLAGS='"], "FLAGS=': No closing quotation"),
    ],
)
def test_bad_input_is_refused(target, typed, text):
    with pytest.raises(UserError) as refused:
        words_of(target, *typed)
    assert text in str(refused.value)


@pytest.mark.plugin("compare")
def test_a_hint_keeps_what_was_typed_and_leads_on(tmp_path, monkeypatch):
    monkeypatch.setenv("KIT_RUNS", str(tmp_path))
    for run_id in ("20260101", "20260102"):
        (tmp_path / "x" / run_id).mkdir(parents=True)
        (tmp_path / "x" / run_id / "spec.json").touch()
    with pytest.raises(UserError, match=r"WITH=... is missing") as refused:
        words_of("compare", "RUN=a b$$")
    again = shlex.split(str(refused.value).partition("hint: make compare ")[2])
    assert words_of("compare", *again) == ["compare", "a b$", "20260102"]
    for typed in ([], ["RUN=x"], ["RUN=20260102"]):  # not with itself
        with pytest.raises(UserError, match=r"RUN=\w+ WITH=20260101$"):
            words_of("compare", *typed)
    with pytest.raises(UserError, match="no target init"):
        words_of("init")


@pytest.mark.parametrize("value", ["--yes", "--help", "-rf"])
def test_no_value_becomes_an_option(value):
    for target in {*make_words.TARGETS, *of_make()}:
        needed, taken = (names.split() for names in make_words.make_variables(target))
        for name in {*needed, *taken} - {"FLAGS", "CMD"}:
            others = [f"{each}=x" for each in needed if each != name]
            with contextlib.suppress(UserError):
                name = name.removesuffix("...")
                assert value not in words_of(target, *others, f"{name}={value}"), (target, name)


def test_plain_torchrun_takes_nothing_of_the_shell(tmp_path, monkeypatch):
    ran: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.setattr("os.execve", lambda *call: ran.append(call))
    environ = {"KIT_TYPED": f"NPROC=2 CONFIG={tmp_path}", "PET_STANDALONE": "1", "A": "b"}
    make_words.words_of("train", environ)
    ((_, argv, env),) = ran
    assert argv[3:] == ["--standalone", "--nproc-per-node=2", "-m", "trainer", str(tmp_path)]
    assert env == {"A": "b"}
    with pytest.raises(UserError, match="is frozen"):
        make_words.words_of("train", {"KIT_TYPED": f"CONFIG={tmp_path} SET=train.lr=1"})


def test_each_command_with_variables_is_a_target():
    files = (KIT_MK, ROOT / "Makefile", *ROOT.glob("jobs/plugins/*/*.mk"))
    listed = {line.partition(":")[0] for file in files for line in file.read_text().splitlines()}
    assert {*make_words.TARGETS, *of_make()} <= listed
