"""The command init: prepares a repository of the user for the installed kit."""

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path

from ...base import answer, installation
from ...base.errors import UserError

IGNORED = ("/runs/", "slurm-*.out", "__pycache__/")


SPEC = """\
# A script as the ranks of torchrun. It saves into the folder KIT_CHECKPOINT_DIR.
name: {stem}
slurm:
  nodes: 1
  time: "01:00:00" # "HH:MM:SS"
  # partition: gpu
  # gpus_per_node: 4
launch:
  script: {name}
  # args: [--lr, "0.1"]
  stop_signal: TERM # so that kit_stop.py can save and stop in time
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "write a spec and kit_stop.py for a torchrun script of your own (train.py)"
    parser.add_argument("--script", nargs="?", const="train.py", metavar="PATH", help=about)


def command(args: argparse.Namespace) -> int:
    if args.script is None:
        return init(Path.cwd())
    return init_script(Path.cwd(), Path(os.path.expanduser(args.script)))


def init_script(folder: Path, script: Path) -> int:
    """Write the spec of a script and, beside the script, kit_stop.py; returns 0.

    A file that exists is kept. Prints how to use them.
    """
    path = folder / script
    if path.suffix != ".py" or not path.parent.is_dir():
        what = "is no Python file" if path.suffix != ".py" else "its folder does not exist"
        raise UserError(f"--script {script}: {what}", "give the path of your train.py")
    top = installation.top_of(folder) or folder
    spec = SPEC.format(stem=json.dumps(path.stem), name=json.dumps(os.path.relpath(path, top)))
    source = installation.KIT_STOP
    kit_stop, config = path.with_name(source.name), folder / f"{path.stem}.yaml"
    answer.give(written=_write({kit_stop: source.read_text(encoding="utf-8"), config: spec}))
    todo = "" if path.is_file() else f"write {script}, and "
    print(f"{todo}let {script} save and stop in time: the first lines of {source.name} show how")
    print(f"next: {installation.of_spec('submit', f'{path.stem}.yaml')}")
    return 0


def _write(texts: Mapping[Path, str]) -> list[str]:
    """Write files, and return their paths; one that exists is kept. Prints both."""
    written = []
    for path, text in texts.items():
        if os.path.lexists(path):
            print(f"{path} exists and is kept")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
        print(f"wrote {path}")
        written.append(str(path))
    return written


def init(folder: Path) -> int:
    """Write a first spec, a fragment for make and lines of .gitignore; returns 0.

    They go to the top of the folder's repository. A file that exists is kept.
    Raises: UserError in a clone of the kit, which has all of this.
    """
    folder = installation.top_of(folder) or folder
    if folder == installation.ROOT:
        raise UserError(f"{folder} is a clone of the kit", installation.FIRST_SUBMIT)
    written = _write({folder / name: text for name, text in files().items()})
    # git must not list runs, which would be frozen.
    path = folder / ".gitignore"
    text = path.read_bytes() if path.exists() else b""
    if absent := [line for line in IGNORED if line.encode() not in text.splitlines()]:
        gap = b"" if not text or text.endswith(b"\n") else b"\n"
        path.write_bytes(text + gap + "".join(f"{line}\n" for line in absent).encode())
        print(f"added to {path}: {' '.join(absent)}")
        written.append(str(path))
    answer.give(written=written)
    print("next: kit submit configs/first.yaml")
    return 0


def files() -> dict[str, str]:
    """Return the text of each file to write. kit.mk has the targets of all plugins in it."""
    plugins = sorted((installation.HOME / "jobs/plugins").glob("*/plugin.mk"))
    targets = "".join(each.read_text(encoding="utf-8") for each in plugins)
    kit_mk = (installation.PACKAGE / "kit.mk").read_text(encoding="utf-8")
    spec = Path(__file__).with_name("first.yaml").read_text(encoding="utf-8")
    kit_mk = kit_mk.replace("include $(KIT_PLUGINS)\n", targets).replace(" $(KIT_PLUGINS)", "")
    return {"configs/first.yaml": spec, "kit.mk": kit_mk}
