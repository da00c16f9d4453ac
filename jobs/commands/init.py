"""The command init: prepares a repository of the user for the installed kit."""

from __future__ import annotations

import shutil
from pathlib import Path

from slurm_job_kit.jobs import installation
from slurm_job_kit.jobs.rundir import write_atomic

TEMPLATES = {"configs/first.yaml": "first.yaml", "kit.mk": "kit.mk"}
IGNORED = ("/runs/", "slurm-*.out")


def init(folder: Path) -> int:
    """Write a first spec, a fragment for make and lines of .gitignore; returns 0.

    A file that exists is kept. Prints what was written.
    """
    for name, template in TEMPLATES.items():
        path = folder / name
        if path.exists():
            print(f"{name} exists and is kept")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(installation.PACKAGE / "templates" / template, path)
        print(f"wrote {name}")
    _ignore(folder / ".gitignore")
    print("next: kit submit configs/first.yaml")
    return 0


def _ignore(path: Path) -> None:
    """Add the lines that .gitignore lacks: git must not list runs, which would be frozen."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    absent = [line for line in IGNORED if line not in text.splitlines()]
    if absent:
        gap = "" if not text or text.endswith("\n") else "\n"
        write_atomic(path, text + gap + "".join(f"{line}\n" for line in absent))
        print(f"added to {path.name}: {' '.join(absent)}")
