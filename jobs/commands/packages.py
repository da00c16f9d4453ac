"""Names Python packages that are missing. Standard library only."""

import importlib.util
import shlex
import sys
from collections.abc import Iterable

# The names under which packages are imported, where they differ.
IMPORT_NAMES = {"pyyaml": "yaml", "pillow": "PIL", "scikit-learn": "sklearn"}
COMMANDS = ("pyyaml", "submitit")
TRAINER = ("torch", "numpy", "safetensors")


def message(names: Iterable[str]) -> str | None:
    """Return which packages this Python lacks, and the pip command; None if it has all.

    Not `-r requirements.lock`: the lock would replace a torch that was built for this cluster.
    """
    absent = [name for name in names if not importlib.util.find_spec(IMPORT_NAMES.get(name, name))]
    if not absent:
        return None
    command = shlex.join([sys.executable, "-m", "pip", "install", *absent])
    return f"{sys.executable} has no {', '.join(absent)}\n  hint: {command}"
