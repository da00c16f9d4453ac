"""The kit's own lines have the time in logs, but not on a user's terminal."""

import os
import re
import subprocess
import sys

import pytest

from slurm_job_kit.jobs.base.console import format_duration, print_line
from tests.core.run_files import REPOSITORY

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "


def stderr_of(*command, **environ):
    """The lines that a command of the kit writes to stderr."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=REPOSITORY,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0, done.stdout
    return done.stderr.splitlines()


def test_each_line_of_a_command_of_the_batch_script_carries_the_time(tmp_path):
    words = ("open", tmp_path / "gone", os.getpid())
    lines = stderr_of("-m", "slurm_job_kit.jobs.attempt", *words)
    assert len(lines) > 1 and all(re.match(TIME, line) for line in lines)


def test_lines_of_a_command_of_a_user_carry_no_time(tmp_path):
    lines = stderr_of("-m", "jobs", "cancel", "nothing", KIT_RUNS=str(tmp_path))
    assert lines and not any(re.match(TIME, line) for line in lines)


@pytest.mark.parametrize(
    ("seconds", "text", "short"),
    [
        (0.4, "0 s", "0 s"),
        (59.6, "1 min", "1 min"),
        (float("inf"), "inf s", "inf s"),
        (7505, "2 h 5 min 5 s", "2 h 5 min"),
        (100_000, "1 d 3 h 46 min 40 s", "1 d 3 h"),
    ],
)
def test_a_duration_has_all_its_units_or_the_largest(seconds, text, short):
    assert format_duration(seconds) == text
    assert format_duration(seconds, 2) == short


def test_a_line_of_the_kit_controls_no_terminal(capfd):
    print_line("a reason\n  hint:\t\x1b[2J\r\x85\u2066\udcff\U000e0001")
    assert capfd.readouterr().err == (
        "a reason\n  hint:\t\\x1b[2J\\r\\x85\\u2066\\udcff\\U000e0001\n"
    )


def test_a_line_shows_all_scripts_as_they_are(capfd):
    line = "Müller: 日本語\u3000行, perte\xa0: 12\u202f345, می\u200cخواهم, 👩\u200d💻 ❤️"
    print_line(line)
    assert capfd.readouterr().err == f"{line}\n"
