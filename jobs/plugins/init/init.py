"""The command init: prepares a repository of the user for the installed kit."""

import argparse
import os
from pathlib import Path

from ...base import installation
from ...base.errors import UserError

IGNORED = ("/runs/", "slurm-*.out", "__pycache__/")
SCRIPT = "configs/own_script" if installation.IS_CLONE else "own_script"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "write kit_stop.py alone, into this folder, for a torchrun script of your own"
    parser.add_argument("--script", action="store_true", help=about)


def command(args: argparse.Namespace) -> int:
    return init_script(Path.cwd()) if args.script else init(Path.cwd())


def init_script(folder: Path) -> int:
    """Write kit_stop.py, unless there is one, and print how to use it; returns 0."""
    source = installation.HOME / SCRIPT / "kit_stop.py"
    _write(folder / source.name, source.read_text(encoding="utf-8"))
    print("its first lines show what a script does with it; a spec, such as train.yaml:")
    print("  name: train\n  slurm: {nodes: 1}\n  launch: {script: train.py, stop_signal: TERM}")
    print("next: kit submit train.yaml")
    return 0


def _write(path: Path, text: str) -> None:
    if os.path.lexists(path):
        print(f"{path} exists and is kept")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
    print(f"wrote {path}")


def init(folder: Path) -> int:
    """Write a first spec, a fragment for make and lines of .gitignore; returns 0.

    They go to the top of the folder's repository. A file that exists is kept. Prints what was
    written.

    Raises: UserError in a clone of the kit, which has all of this.
    """
    folder = installation.top_of(folder) or folder
    if folder == installation.ROOT:
        raise UserError(f"{folder} is a clone of the kit", installation.FIRST_SUBMIT)
    for name, text in files().items():
        _write(folder / name, text)
    _ignore(folder / ".gitignore")
    print("next: kit submit configs/first.yaml")
    return 0


def files() -> dict[str, str]:
    """Return the text of each file to write. kit.mk has the targets of all plugins in it."""
    plugins = sorted((installation.HOME / "jobs/plugins").glob("*/plugin.mk"))
    targets = "".join(each.read_text(encoding="utf-8") for each in plugins)
    kit_mk = (installation.PACKAGE / "kit.mk").read_text(encoding="utf-8")
    spec = Path(__file__).with_name("first.yaml").read_text(encoding="utf-8")
    return {
        "configs/first.yaml": spec,
        "kit.mk": kit_mk.replace("include $(KIT_PLUGINS)\n", targets).replace(
            " $(KIT_PLUGINS)", ""
        ),
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
