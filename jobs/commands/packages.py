"""Python packages: those that a run lacks, and the installation of .venv from a lock file.

    python3 -m jobs.commands.packages LOCK      installs a lock file into .venv, which it makes

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from jobs.errors import UserError
from jobs.spec import Spec

REPOSITORY = Path(__file__).resolve().parents[2]
# The names under which packages are imported, where they differ.
IMPORT_NAMES = {"pyyaml": "yaml", "pillow": "PIL", "scikit-learn": "sklearn"}
COMMANDS = ("pyyaml", "pydantic")  # to submit and resume; submitit on Slurm only
TRAINER = ("torch", "numpy", "safetensors")
DATASETS = {"digits": "scikit-learn", "breast_cancer": "scikit-learn", "image_folder": "pillow"}
# Nearly all of it is torch. Which build pip takes depends on its index, so only pip knows it.
SIZES = "about 0.3 GB with a CPU build of torch, several GB with a CUDA build"
CPU_BUILD = "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu"


def needed(spec: Spec) -> list[str]:
    """The packages of pyproject.toml that a run of this spec imports on this machine's Python.

    None for the ranks where setup lines, a command prefix or srun options choose their Python.
    """
    if spec.setup or spec.launch.command_prefix or spec.slurm.srun_args:
        return [*COMMANDS]
    if not spec.launch.is_trainer:
        return [*COMMANDS, "torch"]
    names = [*COMMANDS, *TRAINER]
    names += [DATASETS[spec.train.dataset]] if spec.train.dataset in DATASETS else []
    names += ["tensorboard"] if spec.log.tensorboard else []
    return names + (["wandb"] if spec.log.wandb != "off" else [])


def check(spec: Spec, is_on_slurm: bool) -> None:
    """Raises: UserError that names every missing package of a run and how to install them."""
    if absent := missing([*needed(spec), *(["submitit"] if is_on_slurm else [])]):
        raise UserError(message(absent))


def missing(names: Iterable[str]) -> list[str]:
    """Those of the packages that this Python cannot import."""
    return [name for name in names if not importlib.util.find_spec(IMPORT_NAMES.get(name, name))]


def message(absent: Sequence[str]) -> str:
    """Which packages this Python lacks, and the pip command that leaves an installed torch alone.

    Not `-r requirements.lock`: the lock would replace a torch that was built for this cluster.
    """
    command = shlex.join([sys.executable, "-m", "pip", "install", *requirements(absent)])
    return f"{sys.executable} has no {', '.join(absent)}\n  hint: {command}"


def requirements(names: Iterable[str]) -> list[str]:
    """Packages with their minimum versions in pyproject.toml: `safetensors>=0.5`."""
    with open(REPOSITORY / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    extras = project["optional-dependencies"].values()
    lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    known = {re.split("[<>=]", line, maxsplit=1)[0]: line for line in lines}
    return [known[name] for name in names]


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
