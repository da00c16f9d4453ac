"""Names Python packages that are missing, and the extra of the kit that has them."""

import shlex
import shutil
import sys
from collections.abc import Iterable
from importlib import util

from .errors import UserError

# The names under which packages are imported, where they differ.
IMPORTED = {"pyyaml": "yaml", "pillow": "PIL", "scikit-learn": "sklearn", "mlflow-skinny": "mlflow"}
COMMANDS = ("pyyaml", "submitit")
TRAINER = ("torch", "numpy", "safetensors")
# The extras of pyproject.toml without which a command ends, or leaves something out.
EXTRAS = {
    "train": TRAINER,
    "examples": ("scikit-learn", "pillow"),
    "report": ("matplotlib", "jinja2"),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow-skinny",),
}


def missing(names: Iterable[str], key: str = "") -> UserError | None:
    """Return an error that names what this Python lacks and installs it; None if it has all.

    Not `-r requirements.lock`: the lock would replace a torch that was built for this cluster. Not
    by the extra: the kit may be a clone, or from any folder or index. key: that needs them.
    """
    absent = [name for name in names if not util.find_spec(IMPORTED.get(name, name))]
    if not absent:
        return None
    extras = [name for name, packages in EXTRAS.items() if {*packages} & {*absent}]
    of = f" (extra {', '.join(extras)} of slurm-job-kit)" if extras else ""
    pip = [sys.executable, "-m", "pip", "install"]
    if not util.find_spec("pip") and shutil.which("uv"):
        pip = ["uv", "pip", "install", f"--python={sys.executable}"]
    other = "activate an environment with torch, set launch.python, or: " * ("torch" in absent)
    what = f"{key and f'{key}: '}{sys.executable} has no {', '.join(absent)}{of}"
    return UserError(what, other + shlex.join([*pip, *absent]))
