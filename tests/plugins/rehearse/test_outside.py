"""What a rehearsed training may change: its copy, the temporary folders, and what --link names."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from slurm_job_kit.jobs.plugins.rehearse.landlock import restriction
from slurm_job_kit.jobs.plugins.rehearse.subjects import PROBE, CommandSubject, SpecSubject
from tests.plugins.rehearse.test_rehearse import ENV, GOOD, only, rehearse, rehearse_in

pytestmark = pytest.mark.long


@pytest.fixture
def folders(tmp_path):
    """A folder that is the training's own, and one with a checkpoint of the user's."""
    for name in ("own/a", "own/b", "other/folder"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "own/new").write_text("new")
    (tmp_path / "other/last.pt").write_text("real")
    return tmp_path / "own", tmp_path / "other"


def untouched(other):
    return sorted(os.listdir(other)) == ["folder", "last.pt"] and (
        (other / "last.pt").read_text() == "real"
    )


SHELL = {  # commands, and whether they succeed
    "echo x > {other}/last.pt": False,
    "mv new {other}/last.pt": False,
    "rm -f {other}/last.pt": False,
    "ln {other}/last.pt hard": False,
    "ln -s {other}/last.pt soft && echo x > soft": False,
    "mkdir {other}/more": False,
    "(echo x > {other}/late) & wait $!": False,
    "echo x > a/x && mv a/x b/x && ln b/x a/y && rm a/y && rmdir a": True,
    "echo x > /dev/null && echo x > /dev/shm/kit-$$ && rm /dev/shm/kit-$$": True,
    "test real = $(cat {other}/last.pt)": True,
}


@pytest.mark.parametrize("command", SHELL)
def test_the_kernel_holds_every_program_to_the_folders(command, folders):
    own, other = folders
    if (restrict := restriction([str(own), "/dev"])) is None:
        pytest.skip("this kernel has no Landlock")
    words = ["sh", "-c", command.format(other=other)]
    done = subprocess.run(words, cwd=own, preexec_fn=restrict, capture_output=True, check=False)
    assert (done.returncode == 0, untouched(other)) == (SHELL[command], True), done.stderr


ASKED = """
import os, shutil, sys, torch
other, last, new = sys.argv[1:]
for change in (
    lambda: open(last, "r+"),
    lambda: os.open(new, os.O_CREAT | os.O_WRONLY),
    lambda: os.replace("new", last),
    lambda: os.replace(last, "old"),
    lambda: os.remove(last),
    lambda: os.truncate(last, 0),
    lambda: os.link(last, "hard"),
    lambda: os.chmod(last, 0o777),
    lambda: os.utime(last),
    lambda: shutil.rmtree(other),
    lambda: torch.save(1, last),
):
    try:
        change()
    except PermissionError as error:
        print(error.filename)
open(last).close(), os.makedirs(other, exist_ok=True), open("/dev/null", "w").close()
os.replace("new", "a/newer"), torch.save(1, "b/last.pt"), shutil.rmtree("b")
"""


def test_without_landlock_python_is_asked_before_it_changes_a_file(folders):
    own, other = folders
    last, new = str(other / "last.pt"), str(other / "new")
    env = {"KIT_REHEARSE": str(own), "KIT_REHEARSE_OWN": f"{own}:/dev", "PYTHONPATH": str(PROBE)}
    words = [sys.executable, "-c", ASKED, other, last, new]
    text = subprocess.check_output(words, cwd=own, env=ENV | env, text=True)
    assert text.split() == [last, new, *[last] * 7, str(other), last]
    assert untouched(other) and os.readlink(own / "outside") == last


def test_a_long_name_or_a_missing_cache_opens_no_other_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "none"))
    (folder := tmp_path / ("long" * 16)).mkdir()
    subject = SpecSubject(config=tmp_path, ranks=1, folder=folder)
    own, short = subject.own, subject.temporary
    assert len(str(short)) < 60 and {str(tmp_path), str(short)} <= {*own}
    assert subject.caches["HF_HOME"] == f"{short}/HF_HOME" and "/tmp" not in own


def test_each_run_has_the_code_of_the_first_also_if_it_is_edited_meanwhile(tmp_path):
    (script := tmp_path / "code/train.py").parent.mkdir()
    words = {"words": [sys.executable, "train.py"], "started_in": script.parent}
    script.write_text("as it was")
    (subject := CommandSubject(ranks=1, folder=tmp_path, **words)).prepare()
    script.write_text("edited")
    subject.place.rename(tmp_path / "first")
    subject.prepare()
    assert (subject.cwd / "train.py").read_text() == "as it was"


@pytest.mark.slow
def test_the_first_write_outside_ends_the_rehearsal_and_the_way_out_lets_it_write_there(folders):
    own, other = folders
    text = GOOD.replace("rank, world = ", f"open('{other}/log', 'w').close()\nrank, world = ")
    status, output = rehearse(own, text, *only("middle"))
    assert (status, f"outside of its copy: {other}/log\n" in output) == (2, True)
    assert untouched(other)
    link = shlex.split(*re.findall(r"--link (.*), and it", output))
    status, _ = rehearse(own, text, *only("middle"), "--link", *link)
    assert status == 0 and (other / "log").exists()


@pytest.mark.slow
def test_a_spec_and_its_run_write_no_run_where_it_says_and_run_no_command_at_their_end(folders):
    own, other = folders
    (own / "a.yaml").write_text(
        f"name: a\nruns_root: {other}\n"
        f"hooks: {{checkpoint: touch {other}/told, end: touch {other}/told}}\n"
        "train: {model: mlp, dataset: breast_cancer, epochs: 3}\n"
    )
    done = rehearse_in(own, *only("middle"), "--keep", str(own.parent / "kept"), "a.yaml")
    assert done.returncode == 0, done.stderr
    (spec,) = own.parent.glob("kept/undisturbed/work/a/[0-9]*/spec.json")
    done = rehearse_in(own, str(spec.parent), *only("SIGKILL of"))
    assert (done.returncode, untouched(other)) == (0, True), done.stderr
