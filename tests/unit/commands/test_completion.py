"""The script of the command completion, in a real bash."""

import os
import shutil
import subprocess
import sys

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.commands.parser import COMMANDS
from tests.unit.run_files import REPOSITORY, make_run

BASH = shutil.which("bash")
# Asks bash for the function of a program and calls it as bash does at a Tab.
DRIVER = r"""
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
[[ "$(complete -p "$1")" =~ \ -F\ ([^ ]+) ]]
"${BASH_REMATCH[1]}" "$1" "${!#}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def complete(here):
    """`complete(word, ...)`: what bash offers at a Tab after the last word."""
    make_run(here, "20260101-1", "tiny")
    make_run(here, "20260102-2", "tiny")
    make_run(here, "20260103-3", "resnet")
    env = {name: value for name, value in os.environ.items() if name != "PATH"}
    env |= {"PATH": "/usr/bin:/bin"}
    argv = [sys.executable, "-m", "jobs", "completion", "bash"]
    script = here / "completion.bash"
    script.write_bytes(subprocess.check_output(argv, cwd=REPOSITORY, env=env))

    def completed(*words, folder=here, env=env):
        command = [str(BASH), "--norc", "-c", DRIVER, "bash", script, *words]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.split()

    return completed


def test_commands_and_options_are_completed(complete):
    assert set(COMMANDS) <= set(complete("kit", ""))
    assert complete("kit", "sta") == ["status"]
    assert complete("kit", "logs", "--ra") == ["--rank"]
    assert complete("kit", "submit", "--cluster", "l") == ["local"]


def test_names_and_ids_of_runs_are_completed(complete):
    assert set(complete("kit", "logs", "")) >= {"tiny", "resnet", "20260101-1", "20260103-3"}
    assert complete("kit", "cancel", "res") == ["resnet"]
    assert complete("kit", "status", "20260102") == ["20260102-2"]


def test_runs_are_those_of_the_repository(here, complete, monkeypatch):
    env = {name: value for name, value in os.environ.items() if name != "KIT_RUNS"}
    env |= {"PATH": "/usr/bin:/bin"}
    (here / ".git").mkdir()
    (here / "below").mkdir()
    assert complete("kit", "logs", "ti", folder=here / "below", env=env) == ["tiny"]
    (here / "below/.git").mkdir()
    assert complete("kit", "logs", "ti", folder=here / "below", env=env) == []


def test_specs_and_keys_are_completed(complete):
    assert complete("kit", "submit", "ti") == ["tiny.yaml"]
    assert complete("kit", "explain", "train.momen") == ["train.momentum"]
    assert "tiny.yaml" in complete("kit", "explain", "ti")


def test_make_is_completed_in_a_clone(complete):
    assert complete("make", "subm", folder=REPOSITORY) == ["submit"]
    assert complete("make", "logs", "RUN", "=", "res", folder=REPOSITORY) == ["resnet"]
    assert "tiny" in complete("make", "logs", "RUN", "=", folder=REPOSITORY)
    config = complete("make", "submit", "CONFIG", "=", "configs/resn", folder=REPOSITORY)
    assert config == ["configs/resnet.yaml"]
    assert complete("make", "explain", "KEY", "=", "log.ev", folder=REPOSITORY) == [
        "log.every_steps"
    ]
    assert complete("make", "submit", "SET", "=", "train.momen", folder=REPOSITORY) == [
        "train.momentum="
    ]
    assert complete("make", "subm") == []


def test_without_shtab_the_user_learns_what_to_install(here, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert "pip install" in capsys.readouterr().err


def test_zsh_gets_a_script(here, capsys):
    assert main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("#compdef kit")
