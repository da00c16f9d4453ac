"""The command export: it finds the run, and becomes the part that imports torch."""

import sys

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.contract.spec import Launch, Spec
from tests.core import run_files
from tests.core.run_files import make_run


def test_export_needs_a_checkpoint_a_folder_and_the_packages_of_the_trainer(
    here, monkeypatch, capsys
):
    run = make_run(here)
    assert main(["export", "tiny"]) == 2
    assert "no checkpoint latest\n  hint: it has none\n" in capsys.readouterr().err
    (run.checkpoints / "step-00000006").mkdir(parents=True)
    assert main(["export", "tiny", "--out", "a b/w"]) == 2
    assert "there is no directory a b\n  hint: mkdir -p 'a b'\n" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert main(["export", "--checkpoint=6"]) == 2
    words = f"{sys.executable} has no safetensors (extra train of slurm-job-kit)\n  hint: "
    assert words in capsys.readouterr().err


def test_export_imports_nothing_of_the_working_directory(here):
    (make_run(here).checkpoints / "step-00000009").mkdir(parents=True)
    for name in ("json", "torch", "random", "slurm_job_kit", "safetensors"):
        (here / f"{name}.py").write_text("open('imported', 'w')\n")
    (here / "\x1b[2J.safetensors.index.json").touch()
    # Without its own working directory, as the command kit, which pip has installed.
    done = run_files.kit("export", "tiny", "--out", "\x1b[2J", python=[sys.executable, "-P"])
    assert "export: error: " in done.stderr and not (here / "imported").exists()
    assert r"\x1b[2J.safetensors.index.json exists" in done.stderr  # by the trainer's part


def test_export_says_of_a_scripts_run_what_it_needs(here, capsys):
    run = make_run(here)
    run.spec.write_text(Spec(launch=Launch(script="x.py")).to_json())
    (run.checkpoints / "step-00000009").mkdir(parents=True)  # by the script
    assert main(["export", "tiny"]) == 2
    assert "export needs a checkpoint of the kit's trainer" in capsys.readouterr().err
