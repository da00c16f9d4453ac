"""The command init: prepares a repository of the user for the installed kit."""

import argparse
import os
from pathlib import Path

from ... import installation
from ...errors import UserError

IGNORED = ("/runs/", "slurm-*.out", "__pycache__/")


def add_arguments(_: argparse.ArgumentParser) -> None:
    """Init has no arguments."""


def command(_: argparse.Namespace) -> int:
    """Run init in the working directory; returns the exit code."""
    return init(Path.cwd())


def init(folder: Path) -> int:
    """Write a first spec, a fragment for make and lines of .gitignore; returns 0.

    They go to the top of the folder's repository. A file that exists is kept. Prints what was
    written.

    Raises: UserError in a clone of the kit, which has all of this.
    """
    folder = installation.top_of(folder) or folder
    if folder == installation.ROOT:
        raise UserError(
            f"{folder} is a clone of the kit\n  hint: make submit CONFIG=configs/resnet.yaml"
        )
    for name, text in files().items():
        path = folder / name
        if os.path.lexists(path):
            print(f"{path} exists and is kept")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
        print(f"wrote {path}")
    _ignore(folder / ".gitignore")
    print("next: kit submit configs/first.yaml")
    return 0


def files() -> dict[str, str]:
    """Return the text of each file to write. kit.mk has the targets of all rooms in it."""
    rooms = sorted((installation.HOME / "jobs/rooms").glob("*/room.mk"))
    targets = "".join(each.read_text(encoding="utf-8") for each in rooms)
    kit_mk = (installation.PACKAGE / "kit.mk").read_text(encoding="utf-8")
    spec = Path(__file__).with_name("first.yaml").read_text(encoding="utf-8")
    return {
        "configs/first.yaml": spec,
        "kit.mk": kit_mk.replace("include $(KIT_ROOMS)\n", targets).replace(" $(KIT_ROOMS)", ""),
    }


def _ignore(path: Path) -> None:
    """Add the lines that .gitignore lacks: git must not list runs, which would be frozen."""
    text = path.read_bytes() if path.exists() else b""
    absent = [line for line in IGNORED if line.encode() not in text.splitlines()]
    if absent:
        gap = b"" if not text or text.endswith(b"\n") else b"\n"
        with open(path, "ab") as file:
            file.write(gap + "".join(f"{line}\n" for line in absent).encode())
        print(f"added to {path}: {' '.join(absent)}")
