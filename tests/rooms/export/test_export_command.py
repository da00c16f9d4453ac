"""The command export: it finds the run, and becomes the part that imports torch."""

import os
import sys

from slurm_job_kit.jobs.__main__ import main
from tests.core.run_files import make_run


def test_export_starts_the_trainers_with_the_live_checkout(here, monkeypatch, capsys):
    run = make_run(here)
    assert main(["export", "tiny"]) == 2
    assert "20260101 has no checkpoint yet\n  hint: " in capsys.readouterr().err
    (run.checkpoints / "step-00000009").mkdir(parents=True)
    started = []
    monkeypatch.setattr(os, "execv", lambda path, words: started.append([path, *words]))
    main(["export", "tiny", "--checkpoint", "best", "--out", "w.safetensors"])
    main(["export"])
    command = [
        sys.executable,
        sys.executable,
        "-m",
        "slurm_job_kit.trainer.rooms.export",
        str(run.path),
    ]
    assert started == [[*command, "--checkpoint", "best", "--out", "w.safetensors"], command]
