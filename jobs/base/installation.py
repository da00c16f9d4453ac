"""Where the kit's own files are: in a clone of its repository, or where pip has installed them.

All code imports the package slurm_job_kit, because a user's repository may have packages `jobs` and
`trainer` of its own. In a clone its parts lie at the top: slurm_job_kit/__init__.py.
"""

import os
import shlex
import sys
from pathlib import Path

NAME = "slurm_job_kit"
PARTS = ("jobs", "trainer", "slurm")
HOME = Path(__file__).resolve().parents[2]  # the folder that has the parts
IS_CLONE = (HOME / NAME / "__init__.py").is_file()
PACKAGE = HOME / NAME if IS_CLONE else HOME
KIT_STOP = HOME / ("configs/examples" if IS_CLONE else "examples") / "kit_stop.py"
SWITCHES = ("--yes", "--code")  # options that are variables of make: YES=1
ROOT = PACKAGE.parent  # the folder in which Python finds the package


def _start() -> Path:
    """Return the working directory; ROOT if it was deleted."""
    try:
        return Path(os.getcwd()).resolve()
    except FileNotFoundError:
        return ROOT


START = _start()  # the working directory when this process began


def _is_by_make() -> bool:
    """Return whether this process is one of a clone, whose commands are make targets: not `kit`.

    A run's copy of the kit has the Makefile if the run came from such a process.
    """
    if not IS_CLONE:
        return (ROOT / "Makefile").is_file()
    if Path(sys.argv[0]).name == "kit":
        return False
    main = getattr(sys.modules["__main__"], "__spec__", None)
    is_top = main is not None and main.name.startswith("jobs.")  # python -m jobs
    return is_top or START.is_relative_to(ROOT)


IS_BY_MAKE = _is_by_make()
# kit.mk of `kit init` calls `kit make TARGET`: that user, too, types to make. The run's copy of the
# kit has kit.mk at its top.
TO_MAKE = sys.argv[1:2] == ["make"] or (not IS_CLONE and (ROOT / "kit.mk").is_file())


def python_m(module: str, *words: str) -> list[str]:
    """Return the command of a module of the kit: `python -m`, without the working directory.

    There may be a json.py or torch.py, also of another user, which Python would import.
    """
    search_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    python = ["/usr/bin/env", f"PYTHONPATH={search_path}", sys.executable, "-P"]
    return [*python, "-m", f"{NAME}.{module}", *words]


def top_of(folder: Path) -> Path | None:
    """Return the top of a folder's git repository, found without git; None if it is in none."""
    return next((top for top in (folder, *folder.parents) if (top / ".git").exists()), None)


FIRST_SUBMIT = (
    "make submit CONFIG=configs/resnet.yaml"
    if IS_BY_MAKE
    else "make submit CONFIG=configs/first.yaml"
    if TO_MAKE
    else "kit init, then kit submit configs/first.yaml"
)


def override(change: str) -> str:
    """Return how the user types a spec override: `SET="train.lr=0.1"`, or `train.lr=0.1`."""
    return f'SET="{change}"' if IS_BY_MAKE or TO_MAKE else change


def option(text: str) -> str:
    """Return how the user types options of a command: `FLAGS='--cluster local'`, or as they are."""
    if not (IS_BY_MAKE or TO_MAKE):
        return text
    return f"{text[2:].upper()}=1" if text in SWITCHES else f"FLAGS={shlex.quote(text)}"


def of_spec(name: str, config: str) -> str:
    """Return how the user types a command with a spec: `make submit CONFIG=x.yaml`."""
    is_config = "CONFIG=" if IS_BY_MAKE or TO_MAKE else ""
    return f"{command(name)} {is_config}{shlex.quote(config)}"


def command(name: str, run: str = "", change: str = "", *flags: str) -> str:
    """Return how the user types a command: `make resume RUN=x YES=1`, or `kit resume x --yes`.

    run: a run id, name or directory. change: an override. flags: names of options, such as `yes`.
    """
    is_make = IS_BY_MAKE or TO_MAKE
    is_run = "RUN=" if is_make and run else ""
    typed = (option(f"--{flag}") for flag in flags)
    words = [is_run + (run and shlex.quote(run)), change and override(change), *typed]
    return " ".join(filter(None, [f"{'make' if is_make else 'kit'} {name}", *words]))
