"""The commands that read one run: logs, compare, export."""

import os
import sys

from commands_kit import make_run

from jobs.__main__ import main
from jobs.rundir import write_json


def test_logs_shows_a_rank_or_says_which_there_are(here, capsys):
    log = make_run(here).rank_log(0)
    log.parent.mkdir()
    log.write_bytes(b"step 1\n\xff")
    assert main(["logs", "tiny"]) == 0
    assert capsys.readouterr().out == "step 1\n\ufffd"
    assert main(["logs", "tiny", "--rank", "3"]) == 2
    assert "there is rank-00000.log" in capsys.readouterr().err


def test_compare_says_bitwise_equal_or_how_two_runs_differ(here, capsys):
    result = {"status": "completed", "global_step": 9, "weights_sha256": "ab"}
    for name in ("a", "b"):
        write_json(make_run(here, name, name).result, result | {"exactness": "bitwise"})
    assert main(["compare", "a", "b"]) == 0
    assert capsys.readouterr().out == "bitwise equal: 9 steps, weights ab\n"
    write_json(make_run(here, "c", "c").result, result | {"exactness": "bitwise", "global_step": 8})
    assert main(["compare", "c", "b"]) == 1
    assert capsys.readouterr().out == "global_step: 8 is not 9\n"


def test_export_starts_the_trainers_with_the_live_checkout(here, monkeypatch, capsys):
    run = make_run(here)
    assert main(["export", "tiny"]) == 2
    assert "20260101 has no checkpoint yet\n  hint: " in capsys.readouterr().err
    (run.checkpoints / "step-00000009").mkdir(parents=True)
    started = []
    monkeypatch.setattr(os, "execv", lambda path, words: started.append([path, *words]))
    main(["export", "tiny", "--checkpoint", "best", "--out", "w.safetensors"])
    main(["export"])
    command = [sys.executable, sys.executable, "-m", "trainer.checkpoint.export", str(run.path)]
    assert started == [[*command, "--checkpoint", "best", "--out", "w.safetensors"], command]
