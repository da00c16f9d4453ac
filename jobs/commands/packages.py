"""Names the Python packages that a run lacks, before it is queued. Standard library only."""

import importlib.util
import shlex
import sys
from collections.abc import Iterable

from ..base.errors import UserError
from ..contract.spec import Spec

# The names under which packages are imported, where they differ.
IMPORT_NAMES = {"pyyaml": "yaml", "pillow": "PIL", "scikit-learn": "sklearn"}
COMMANDS = ("pyyaml",)  # to submit and resume; submitit on Slurm only
TRAINER = ("torch", "numpy", "safetensors")
DATASETS = {**dict.fromkeys(("digits", "breast_cancer"), "scikit-learn"), "image_folder": "pillow"}


def needed_packages(spec: Spec) -> list[str]:
    """Return the packages that the ranks of a run import."""
    if not spec.launch.is_trainer:
        return ["torch"]
    names = [*TRAINER]
    names += [DATASETS[spec.train.dataset]] if spec.train.dataset in DATASETS else []
    names += ["tensorboard"] if spec.log.tensorboard else []
    return names + (["wandb"] if spec.log.wandb != "off" else [])


def check(spec: Spec, is_on_slurm: bool) -> None:
    """Raises: UserError that names every missing package of a run and how to install them.

    Those of the ranks only where they have this interpreter and no other environment.
    """
    names = [*COMMANDS, *(["submitit"] if is_on_slurm else [])]
    if spec.interpreter == sys.executable and not (spec.setup or spec.runs_inside):
        names += needed_packages(spec)
    if (missing := message(names)) is not None:
        raise UserError(missing)


def message(names: Iterable[str]) -> str | None:
    """Return which packages this Python lacks, and the pip command; None if it has all.

    Not `-r requirements.lock`: the lock would replace a torch that was built for this cluster.
    """
    absent = [name for name in names if not importlib.util.find_spec(IMPORT_NAMES.get(name, name))]
    if not absent:
        return None
    command = shlex.join([sys.executable, "-m", "pip", "install", *absent])
    return f"{sys.executable} has no {', '.join(absent)}\n  hint: {command}"
