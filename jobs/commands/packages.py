"""Python packages: those that a run lacks, and the installation of .venv from a lock file.

    python3 -m jobs.commands.packages LOCK      installs a lock file into .venv, which it makes

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from .. import installation
from ..errors import UserError
from ..node.__main__ import OLDEST
from ..spec import Spec

# Prints the version, and the modules that are missing. Every Python from 3.4 on can run it.
LOOK_UP = """
import sys
from importlib.util import find_spec
print("%d.%d" % sys.version_info[:2])
for name in sys.argv[1:]:
    if find_spec(name) is None:
        print(name)
"""
LOOK_UP_LIMIT_S = 60
WAY_OUT = "set launch.python to another interpreter, or leave it out to use the one that submits"
# The names under which packages are imported, where they differ.
IMPORT_NAMES = {"pyyaml": "yaml", "pillow": "PIL", "scikit-learn": "sklearn"}
COMMANDS = ("pyyaml",)  # to submit and resume; submitit on Slurm only
TRAINER = ("torch", "numpy", "safetensors")
DATASETS = {
    **dict.fromkeys(("digits", "breast_cancer", "diabetes"), "scikit-learn"),
    "image_folder": "pillow",
}
# Nearly all of it is torch. Which build pip takes depends on its index, so only pip knows it.
SIZES = "about 0.3 GB with a CPU build of torch, several GB with a CUDA build"
CPU_BUILD = "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu"


def needed_packages(spec: Spec) -> list[str]:
    """Return the packages of pyproject.toml that the ranks of a run import."""
    if not spec.launch.is_trainer:
        return ["torch"]
    names = [*TRAINER]
    names += [DATASETS[spec.train.dataset]] if spec.train.dataset in DATASETS else []
    names += ["tensorboard"] if spec.log.tensorboard else []
    return names + (["wandb"] if spec.log.wandb != "off" else [])


def check(spec: Spec, is_on_slurm: bool) -> None:
    """Raises: UserError that names every missing package of a run and how to install them.

    The packages of the ranks are looked up in their interpreter, if that can be done here.
    """
    here = [*COMMANDS, *(["submitit"] if is_on_slurm else [])]
    if ranks_python(spec) == sys.executable:
        here += needed_packages(spec)
    if absent := missing(here):
        raise UserError(message(absent))
    check_interpreter(spec)


def ranks_python(spec: Spec) -> str | None:
    """Return the path of the ranks' interpreter; None where only a node can find or start it.

    Setup lines may set what it needs, such as LD_LIBRARY_PATH or PYTHONPATH.
    """
    is_known = not (spec.setup or spec.runs_inside) and os.path.isabs(spec.interpreter)
    return spec.interpreter if is_known else None


def check_interpreter(spec: Spec) -> None:
    """Raises: UserError if launch.python is a path that cannot be used as this machine shows it.

    A path in a folder that this machine lacks may exist on the nodes: the agents check it there.
    """
    python = ranks_python(spec)
    if python is None or python == sys.executable or not os.path.isdir(os.path.dirname(python)):
        return
    if not os.access(python, os.X_OK):
        raise UserError(f"launch.python: {python} is no program\n  hint: {WAY_OUT}")
    version, *absent = _look_up(python, [import_name(name) for name in needed_packages(spec)])
    if tuple(map(int, version.split("."))) < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise UserError(
            f"launch.python: {python} is Python {version}, and agents and ranks need {wanted} "
            f"or newer\n  hint: {WAY_OUT}"
        )
    if absent:
        names = [name for name in needed_packages(spec) if import_name(name) in absent]
        raise UserError(f"launch.python: {message(names, python)}")


def _look_up(python: str, modules: Sequence[str]) -> list[str]:
    """Return the version of an interpreter, then those of the modules that it lacks."""
    try:
        asked = [python, "-c", LOOK_UP, *modules]
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=LOOK_UP_LIMIT_S)
        lines, errors = answer.stdout.splitlines(), answer.stderr.splitlines()
        why = (errors or [f"exit code {answer.returncode}"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        lines, why = [], str(error)
    if not lines or not re.fullmatch(r"[0-9]+\.[0-9]+", lines[0]):
        raise UserError(f"launch.python: {python} is no working Python: {why}\n  hint: {WAY_OUT}")
    return lines


def import_name(package: str) -> str:
    """Return the name under which a package is imported."""
    return IMPORT_NAMES.get(package, package)


def missing(names: Iterable[str]) -> list[str]:
    """Return those of the packages that this Python cannot import."""
    return [name for name in names if not importlib.util.find_spec(import_name(name))]


def message(absent: Sequence[str], python: str = sys.executable) -> str:
    """Return which packages a Python lacks, and the pip command that keeps an installed torch.

    Not `-r requirements.lock`: the lock would replace a torch that was built for this cluster.
    """
    command = shlex.join([python, "-m", "pip", "install", *requirements(absent)])
    return f"{python} has no {', '.join(absent)}\n  hint: {command}"


def requirements(names: Iterable[str]) -> list[str]:
    """Return the packages with their minimum versions in pyproject.toml: `safetensors>=0.5`."""
    known = {re.split("[<>=]", line, maxsplit=1)[0]: line for line in _requirements()}
    return [known[name] for name in names]


def _requirements() -> list[str]:
    """Return all requirements of the kit: from pyproject.toml, or from what pip has installed."""
    if not installation.IS_CLONE:
        import importlib.metadata

        requirements = importlib.metadata.requires(installation.DISTRIBUTION) or []
        return [line.partition(";")[0].strip() for line in requirements]
    import tomllib

    with open(installation.ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    extras = project["optional-dependencies"].values()
    return [*project["dependencies"], *(line for extra in extras for line in extra)]


def install(lock: Path, folder: Path) -> int:
    """Install a lock file into a virtual environment, which is made if needed; pip's exit code.

    pip prints each file that it downloads with its size.
    """
    python = folder / "bin/python"
    has_pip = (
        python.exists()
        and not subprocess.run(
            [python, "-m", "pip", "--version"], check=False, capture_output=True
        ).returncode
    )
    if not has_pip:  # new, or left half made by an interruption
        if not importlib.util.find_spec("ensurepip"):
            hint = "apt-get install python3-venv"
            print(f"error: python3-venv is missing\n  hint: {hint}", file=sys.stderr)
            return 2
        print(f"making {folder} from {lock}, once: pip downloads {SIZES}")
        print(f"  hint: for the CPU build: {CPU_BUILD} make setup", flush=True)
        made = subprocess.run([sys.executable, "-m", "venv", folder], check=False)
        if made.returncode:
            return made.returncode
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "-r", str(lock)]
    return subprocess.run(pip, check=False).returncode


if __name__ == "__main__":
    sys.exit(install(Path(sys.argv[1]), Path(".venv")))
