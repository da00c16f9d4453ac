"""The command export: it finds the run, and becomes the part that imports torch."""

import os
import sys

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.base import installation
from slurm_job_kit.jobs.contract.spec import Launch, Spec
from tests.core import run_files
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
    command = installation.python_m("trainer.plugins.export", str(run.path))
    command.insert(0, command[0])
    assert started == [[*command, "--checkpoint=best", "--out=w.safetensors"], command]


def test_export_imports_nothing_of_the_working_directory(here):
    (make_run(here).checkpoints / "step-00000009").mkdir(parents=True)
    for name in ("json", "torch", "random", "slurm_job_kit", "safetensors"):
        (here / f"{name}.py").write_text("open('imported', 'w')\n")
    # Without its own working directory, as the command kit, which pip has installed.
    words = ("export", "tiny", "--checkpoint", "step-\x1b[2J")
    done = run_files.kit(*words, python=[sys.executable, "-P"])
    assert "export: error: " in done.stderr and not (here / "imported").exists()
    assert r"step-\x1b[2J" in done.stderr  # which is printed by the trainer's part


def test_export_says_of_a_scripts_run_what_it_needs(here, capsys):
    run = make_run(here)
    run.spec.write_text(Spec(launch=Launch(script="x.py")).to_json())
    (run.checkpoints / "step-00000009").mkdir(parents=True)  # by the script
    assert main(["export", "tiny"]) == 2
    assert "export needs a checkpoint of the kit's trainer" in capsys.readouterr().err
