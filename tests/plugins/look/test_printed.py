"""What status, why and logs print of three runs: printed.txt.

`WRITE=1 pytest -n0 tests/plugins/look/test_printed.py` writes that file. Other tests check facts.
"""

import os
import re
from pathlib import Path

import pytest

from slurm_job_kit.jobs.__main__ import main
from tests.core.run_files import make_checkpoint, make_run, write_json
from tests.plugins.look.conftest import Story

PRINTED = Path(__file__).with_name("printed.txt")
COMMANDS = (
    *("status", "status 3", "status done", "status done --json", "why 3", "why done", "why new"),
    *("logs 3 --rank 1", "logs 3 --errors"),
)


@pytest.fixture
def runs(here, capsys):
    """A run that was held, a complete one, and one that was never started."""
    make_run(here, "1", "new")
    done = make_run(here, "2", "done")
    values = {"eval_accuracy": 0.5, "eval_bleu": 3.0, "loss": 0.123456}
    now = {"step": 50, "total": 50, "epoch": 2, "epochs": 2, "speed": {"samples_per_s": 93.0}}
    write_json(done.progress, now | {"eta_s": 1, "metrics": values})
    write_json(done.result, {"status": "completed", "global_step": 50, "metrics": values})
    done.tensorboard.mkdir()
    held = Story(make_run(here, "3"), capsys)
    for number in range(1, 3):
        held.attempt(number, cause="preemption", reason="preempted", stop=61.0)
        held.run.attempt(number).rank_log(1).write_text(f"step {number}\nkilled")
    held.attempt(3, decision="hold", stop=61.0, evidence={"error": "rank 1 on b: ValueError: x"})
    held.error(number=3, kind="user_code")
    held.error(rank=2, number=3)
    held.held("rank 1 on b: ValueError: x")
    write_json(held.run.progress, {"step": 7, "total": None, "loss": 0.5})
    make_checkpoint(held.run, 3)
    held.name_reasons()


def test_status_why_and_logs_print_what_is_known_of_each_run(here, runs, capsys):
    shown = ""
    for line in COMMANDS:
        main(line.split())
        shown += f"$ kit {line}\n{capsys.readouterr().out}\n"
    shown = shown.replace(str(here), "HERE")
    shown = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?", "DATE", shown)
    shown = re.sub(r"\d+ \w+ ago", "N s ago", shown)
    if os.environ.get("WRITE"):
        PRINTED.write_text(shown, encoding="utf-8")
    assert shown == PRINTED.read_text(encoding="utf-8")
