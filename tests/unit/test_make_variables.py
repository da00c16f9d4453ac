"""Of make's variables only those on its command line count, in a clone and by the file of init."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from slurm_job_kit.jobs import installation

ROOT = Path(__file__).resolve().parents[2]
KIT_MK = installation.PACKAGE / "templates/kit.mk"
# In place of the kit: prints its arguments, and what make gave it.
KIT = """#!/bin/sh
printf 'ran'; printf ' <%s>' "$@"; echo
env
"""
# What some other program may have left in the user's shell.
SHELL = {
    **dict.fromkeys(("YES", "CODE", "DCP", "DRY", "RETRY"), "1"),
    "SET": "train.lr=9",
    "RUN": "other",
    "FLAGS": "--wrong",
    "CHECKPOINT": "best",
    "NPROC": "7",
    "NNODES": "3",
    "MASTER_ADDR": "x",
    "PET_STANDALONE": "1",
    "KIT_SET": "a=b",
    "N": "1",
    "FROM": "other@step-1",
    "KEY": "train",
    "WITH": "other",
    "HOST": "laptop",
}


@pytest.fixture
def fake_kit(tmp_path):
    path = tmp_path / "bin/kit"
    path.parent.mkdir()
    path.write_text(KIT)
    path.chmod(0o755)
    return path


@pytest.fixture(params=["clone", "kit.mk", "included"])
def make(request, fake_kit, tmp_path):
    """`make(words, environ)` by the Makefile of a clone, or by kit.mk, of a user's Makefile too."""
    ours = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "KIT_", *SHELL)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    inherited["PATH"] = f"{fake_kit.parent}:{inherited['PATH']}"
    own = "FLAGS := -O2\nown: ; @echo $(V) $(YES)\n"
    (tmp_path / "Makefile").write_text(f"{own}include {KIT_MK}\n")
    command, folder = {
        "clone": (["make", f"PYTHON={fake_kit}", "READY="], ROOT),
        "kit.mk": (["make", "-f", str(KIT_MK)], tmp_path),
        "included": (["make"], tmp_path),
    }[request.param]

    def run(*words, environ=None):
        env = inherited | (environ or {})
        argv = [*command, *words]
        return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True)

    return run


@pytest.fixture
def door(request):
    """The parameter of `make`."""
    return request.node.callspec.params["make"]


def ran(done):
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("ran"))
    return line.replace(" <-m> <jobs>", "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["submit", "CONFIG=x"], "ran <submit> <x> <--set=>"),
        (["sweep", "CONFIG=x"], "ran <sweep> <x> <--set=>"),
        (["resume"], "ran <resume> <--set=>"),
        (["export"], "ran <export>"),
        (["explain"], "ran <explain> <--set=>"),
        (["status"], "ran <status>"),
    ],
)
@pytest.mark.parametrize("flags", [[], ["-e"]])
def test_a_variable_of_the_shell_does_not_count(make, words, expected, flags):
    assert ran(make(*flags, *words, environ=SHELL)) == expected


def test_clean_deletes_only_if_it_is_typed(make, door):
    if door != "clone":
        pytest.skip("kit.mk has no clean: a user's Makefile usually has one")
    assert ran(make("clean", environ=SHELL)) == "ran <clean>"
    assert ran(make("clean", "YES=1")) == "ran <clean> <--yes>"


def test_config_counts_in_the_environment_too(make):
    assert (
        ran(make("submit", environ={"CONFIG": "mine.yaml"})) == "ran <submit> <mine.yaml> <--set=>"
    )


@pytest.mark.parametrize(
    ("value", "options"),
    [
        *[(value, " <--dry-run>") for value in ("1", "yes", "true")],
        *[(value, "") for value in ("0", "no", "false", "")],
    ],
)
def test_a_switch_has_values_for_on_and_off(make, value, options):
    assert ran(make("sweep", "CONFIG=x", f"DRY={value}")) == f"ran <sweep> <x> <--set=>{options}"


@pytest.mark.parametrize("switch", ["YES", "CODE"])
def test_another_value_of_a_switch_is_refused_with_the_way_out(make, switch):
    done = make("resume", f"{switch}=maybe")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{switch}=maybe: write {switch}=1 or {switch}=0" in done.stderr


@pytest.mark.parametrize(
    "words",
    [["submit", "CONFIG=x", "CODE=1"], ["cancel", "RUN=x", "YES=1"], ["status", "CONFIG=x"]],
)
def test_a_variable_of_another_target_is_refused(make, words):
    done = make(*words)
    assert (done.returncode, done.stdout) == (2, "")
    name = words[-1].partition("=")[0]
    assert f"make {words[0]} takes no {name}=...; it takes " in done.stderr


def test_a_misspelt_variable_is_refused_where_no_other_makefile_may_have_it(make, door):
    done = make("submit", "CONFIG=x", "STE=train.lr=0.1")
    if door == "included":
        assert ran(done) == "ran <submit> <x> <--set=>"
        assert make("own", "V=2", "YES=q").stdout == "2 q\n"
    else:
        assert (done.returncode, done.stdout) == (2, "")
        assert "takes no STE=...; it takes CONFIG SET" in done.stderr


def test_what_is_typed_reaches_the_command_but_not_the_run(make):
    typed = ("CONFIG=x", "SET=a='$$b' c", "YES=1", "FLAGS=--json", "HOST=me@login:kit")
    done = make("submit", *typed)
    assert ran(done) == "ran <submit> <x> <--set=a='$$b' c> <--yes> <--json>"
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert not {"YES", "SET", "HOST", "CONFIG"} & set(seen)
    assert seen["KIT_HOST"] == "me@login:kit"


def test_plain_torchrun_takes_nothing_of_the_shell(make, door):
    if door != "clone":
        pytest.skip("kit.mk has no train")
    done = make("train", "CONFIG=configs/cancer.yaml", environ=SHELL)
    words = "<-m> <torch.distributed.run> <--nproc-per-node=1> <--standalone> <-m> <trainer>"
    assert words in done.stdout and "PET_STANDALONE=1" not in done.stdout.splitlines()


def test_the_help_says_which_variables_count(make, door):
    done = make(*(["kit-help"] if door != "clone" else ["help"]))
    assert "command line only" in done.stdout and "CONFIG counts" in done.stdout


def test_every_target_of_kit_mk_says_what_it_takes():
    text = KIT_MK.read_text()
    targets = [line.partition(":")[0] for line in text.splitlines() if ": ## " in line]
    listed = re.search(r"^kit_targets := (.+)$", text, re.MULTILINE)
    assert listed and sorted(targets) == sorted(listed[1].split())
    for target in targets:
        assert f"\nkit_takes_{target} := " in text
