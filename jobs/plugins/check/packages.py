"""The Python packages that the ranks of a run import."""

import sys

from ...base.errors import UserError
from ...commands.packages import TRAINER, message
from ...contract.spec import Spec

DATASETS = {**dict.fromkeys(("digits", "breast_cancer"), "scikit-learn"), "image_folder": "pillow"}


def needed_packages(spec: Spec) -> list[str]:
    """Return the packages that the ranks of a run import."""
    if not spec.launch.is_trainer:
        return ["torch"]
    names = [*TRAINER]
    names += [DATASETS[spec.train.dataset]] if spec.train.dataset in DATASETS else []
    names += ["tensorboard"] if spec.log.tensorboard else []
    return names + (["wandb"] if spec.log.wandb != "off" else [])


def check(spec: Spec) -> None:
    """Raises: UserError that names every missing package of the ranks and how to install them.

    Only where they have this interpreter and no other environment.
    """
    is_here = spec.interpreter == sys.executable and not (spec.setup or spec.runs_inside)
    if is_here and (missing := message(needed_packages(spec))):
        raise UserError(missing)
