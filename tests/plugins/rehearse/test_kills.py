"""The disks that a kill in a save leaves, and the verdict on the starts after it."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.plugins.rehearse import disks, scenarios
from slurm_job_kit.jobs.plugins.rehearse.causes import CONTINUES, NEWEST
from slurm_job_kit.jobs.plugins.rehearse.probe import kit_disk
from tests.core.run_files import answered
from tests.plugins.rehearse.test_rehearse import only, rehearse

BIG = 2 << 20


def write(name, content=b"new" * BIG):
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_bytes(content)


def shell(command):
    return lambda: subprocess.run(command, shell=True, check=True)


def written(name):
    return [f"{name} {what}" for what in ("is empty", "is half written", "is written")]


OPERATIONS = {
    "written to the final name": (lambda: write("last.pt"), written("last.pt")),
    "new, and opened by Python": (lambda: write("new.pt"), written("new.pt")),
    "by another program": (shell("cp last.pt other.pt"), ["other.pt is written"]),
    "the same, renamed by it": (shell("cp last.pt a && sleep 0.02 && mv a last.pt"), []),
    "another content, renamed": (shell("echo 1 > a && sleep 0.02 && mv a b"), ["b is written"]),
    "a folder": (lambda: (write("new/a"), shutil.move("new", "b")), ["b is written"]),
    "removed": (lambda: os.remove("last.pt"), ["last.pt is removed"]),
    "a link": (lambda: os.symlink("last.pt", "latest"), ["latest is written"]),
    "lines that are appended": (lambda: write("a.csv"), []),
    "renamed to an opened name": (lambda: os.replace("old", "new.pt"), ["new.pt is renamed"]),
    "beside the repository": (lambda: write("../a.pt"), ["a.pt is written"]),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_moment_of_a_write_is_a_disk_but_not_of_a_rename(name, tmp_path, monkeypatch):
    operation, expected = OPERATIONS[name]
    place, folder = tmp_path / "place", tmp_path / "disk"
    (place / "code").mkdir(parents=True)
    monkeypatch.chdir(place / "code")
    write("last.pt", b"old" * BIG)
    write("old")
    kit_disk.record(place, folder, "new.pt")
    time.sleep(0.01)
    operation()
    kit_disk.record(place, folder)
    first, *others = disks.of_save(folder)
    assert (first.what, [each.what for each in others]) == ("nothing is written yet", expected)


SAVER = """
import atexit, json, os, shutil, torch
atexit.register(print, "  0%|    | 0/40 [00:00<?, ?it/s]")
torch.manual_seed(1)
model, step = torch.nn.Linear(4, 1), 0
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
def load(path, number):
    global step
    for own, saved in zip((model, optimizer), torch.load(path)):
        own.load_state_dict(saved)
    step = number
{load}
while step < {steps}:
    data = torch.rand(4, 4, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad(), model(data).square().sum().backward(), optimizer.step()
    step += 1
    if step % 4 == 0:
        torch.save([model.state_dict(), optimizer.state_dict()], "a.tmp")
        {save}
torch.save(model.state_dict(), "end.pt")
"""
BY_NUMBER = (
    "if os.path.exists('number.json'): load('a.pt', json.load(open('number.json')))",
    "os.replace('a.tmp', 'a.pt'); json.dump(step, open('b', 'w')); os.replace('b', 'number.json')",
)
BY_FOLDER = (
    "for number in map(int, open('newest').read().split() if os.path.exists('newest') else ()):\n"
    "    load(f'{number}/a.pt', number)",
    "os.makedirs(str(step), exist_ok=True); os.rename('a.tmp', f'{step}/a.pt'); "
    "open('b', 'w').write(str(step)); os.replace('b', 'newest')",
)
KILLED = {  # how it loads and saves, what is no, and its words
    "a file beside the weights": (*BY_NUMBER, [CONTINUES], "mixed: the weights of step 12, "),
    "of 8 steps, one save at the end": (*BY_NUMBER, [CONTINUES], "mixed: the weights of step 8, "),
    "a folder, and its name in a file": (*BY_FOLDER, [], ""),
    "the older name is removed before": (
        "if os.path.exists('latest'): load('latest/a.pt', int(os.readlink('latest')))",
        "os.makedirs(str(step), exist_ok=True); os.rename('a.tmp', f'{step}/a.pt'); "
        "os.path.lexists('latest') and os.remove('latest'); os.symlink(str(step), 'latest')",
        *([CONTINUES, NEWEST], "a start from step 0 although a whole state of step 8 was there"),
    ),
    "names sorted as text": (
        "import glob\nfor name in sorted(glob.glob('c*'))[-1:]: load(name, int(name[1:-3]))",
        "os.replace('a.tmp', f'c{step}.pt')",
        *([NEWEST], "a start from step 8 although c12.pt of step 12 was there"),
    ),
}


@pytest.mark.long
@pytest.mark.slow
def test_a_kill_within_a_save_is_tried_however_long_it_takes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(scenarios, "KILLS_S", 0.0)
    monkeypatch.chdir(tmp_path)
    write("train.py", SAVER.format(load="", save=BY_NUMBER[1], steps=16).encode())
    words = ["--json", "--ranks", "1", *only("SIGKILL during a save")]
    main(["rehearse", *words, "--", sys.executable, "train.py"])
    found = [x for x in answered(capsys.readouterr().out)["scenarios"] if "SIGKILL" in x]
    assert len(found) == 3 and found[2].endswith(": a.pt is renamed")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", KILLED)
def test_a_start_goes_on_from_a_whole_state_after_a_kill_in_a_save(name, tmp_path):
    load, save, expected, words = KILLED[name]
    text = SAVER.format(load=load, save=save, steps=8 if "8 steps" in name else 16)
    _, verdict = rehearse(tmp_path, text, "--ranks", "1", *only("during a save"))
    bad = {x["question"]: x["detail"] for x in verdict["answers"] if x["answer"] == "no"}
    assert [x for x in bad if x in (CONTINUES, NEWEST)] == expected, verdict
    assert all(words in bad[question] for question in expected)
