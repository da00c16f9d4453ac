"""A command that looks at a run changes no file: of any run, also of another user's."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.commands.catalogue import all_commands
from slurm_job_kit.jobs.contract.rundir import RunDir
from tests.core import run_files
from tests.core.run_files import REPOSITORY, answered, make_checkpoint, make_run, tree, write_json

NOBODY = 65534
OF_ALL_PLUGINS = [
    ["status", "--all"],
    ["status", "tiny"],
    ["why", "tiny"],
    ["logs", "tiny"],
    ["logs", "tiny", "--errors"],
    ["report", "tiny", "--json"],  # without it it writes a page
    ["explain", "train.lr"],
    ["compare", "tiny", "tiny"],
    ["shell", "tiny"],
    ["clean"],  # lists what it would delete
]
LOOKING = [words for words in OF_ALL_PLUGINS if words[0] in all_commands()]


def began(run: RunDir) -> None:
    """The files of an attempt that job 7 began."""
    write_json(run.submission, {"argv": None, "job_id": "7"})
    run_files.opened(run)
    write_json(run.owner, run_files.claim())
    run.attempt(1).rank_log(0).write_text("step 7\n")
    make_checkpoint(run, 3)


def killed_when_complete(run: RunDir) -> None:
    """Its batch script was killed before it wrote the record and the result."""
    began(run)
    write_json(run.attempt(1).outcome, {"status": "completed", "global_step": 9})


def cancelled_between_starts(run: RunDir) -> None:
    """The cancel came after the end of the attempt, and before Slurm's requeue."""
    began(run)
    run_files.recorded(run, decision="wait", cause="requeued")
    run.cancelled.write_text("now: jobs cancel: 7\n")


def held(run: RunDir) -> None:
    began(run)
    run_files.recorded(run, {"error": "x"}, decision="hold", cause="crash")
    write_json(run.result, {"status": "held", "reason": "x", "attempts": 1})


KINDS = {
    "frozen": lambda run: None,
    "running": began,
    "lost": began,
    "complete": killed_when_complete,
    "cancelled": cancelled_between_starts,
    "held": held,
}


@pytest.fixture
def tmp_path():
    """A folder that other users may open: pytest closes its own whenever it starts again."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@contextlib.contextmanager
def another_user(root):
    """A block as a user who may read everything below a folder, and write nothing.

    Only root can become another user. Of anybody else the files are made read-only.
    """
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o555 if path.is_dir() else 0o444)
    if os.getuid() == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(os.getuid())
        for path in [root, *root.rglob("*")]:
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)  # so that they can be deleted


@pytest.mark.parametrize("who", [contextlib.nullcontext, another_user])
@pytest.mark.parametrize("kind", KINDS)
def test_a_command_that_looks_changes_no_file(here, slurm, capsys, kind, who):
    slurm.set_state("7", "RUNNING" if kind == "running" else "FAILED")
    run, runs = make_run(here), here / "runs"
    KINDS[kind](run)
    with who(runs):
        before = tree(runs)
        for words in LOOKING:
            main(words)
            assert tree(runs) == before, words
    shown = capsys.readouterr().out
    assert ("nothing is wrong, the run is complete" in shown) == (kind == "complete")


# A title of the window, a return, C1, text from right to left, another end of a line.
HARMFUL = "\x1b]0;x\x07\r\x9b2J\u202e\u2028\x7f"
SPACES = "\n\t\xa0\u202f\u3000\u200c\u200d"  # and joiners, of texts in many languages


def test_no_command_prints_what_controls_a_terminal(here, capfdbinary):
    run = make_run(here)
    began(run)
    run_files.opened(run, nodes=[HARMFUL, "b"])
    run_files.recorded(run, {"error": HARMFUL}, decision="hold", cause="crash", reason=HARMFUL)
    run_files.failed(run.attempt(1), 0, 2.0, HARMFUL, traceback=HARMFUL)
    write_json(run.result, {"status": "held", "reason": HARMFUL, "attempts": 1})
    run.metrics.write_text(json.dumps({"step": 1, "global_step": 1, HARMFUL: 0.5}) + "\n")
    run.attempt(1).rank_log(0).write_text(f"loss \xe9 {HARMFUL}\n")
    (here / "runs/tiny").rename(here / f"runs/{HARMFUL}\xe9\udcff")  # a byte that is no text
    of_run = [[run.run_id if word == "tiny" else word for word in words] for words in LOOKING]
    for words in (*of_run, ["logs", "-f"], ["status", HARMFUL], ["submit", f"{HARMFUL}\udcff"]):
        main(words)
        out, err = (each.decode() for each in capfdbinary.readouterr())
        assert all(each.isprintable() or each in SPACES for each in out + err), (words, out, err)
        if words[0] in all_commands() and words != ["logs", "-f"]:
            main([*words, "--json"])
            answered(capfdbinary.readouterr()[0].decode())
        if words[0] == "logs" and len(words) == 2:
            assert r"\x9b2J\u202e\u2028\x7f" in out
    shown = run_files.kit("status", LC_ALL="C", PYTHONIOENCODING="ascii")  # no other characters
    assert shown.returncode == 0 and r"\u2028\x7f\xe9\udcff" in shown.stdout


@pytest.mark.parametrize("words", [["status"], ["logs", "tiny"]])
def test_a_reader_that_has_seen_enough_ends_a_command_in_silence(here, words):
    log = run_files.opened(make_run(here)).rank_log(0)
    log.write_text("a line\n" * 100_000)
    command = [sys.executable, "-m", "jobs", *words]
    env = os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": ""}
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, env=env, stdout=writing, stderr=subprocess.PIPE, timeout=30)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
