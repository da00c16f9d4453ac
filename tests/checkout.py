"""A copy of this checkout that a test may change."""

import shutil
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def copy_checkout(target: Path) -> None:
    """Copy the repository without hidden files, bytecode and the runs at its top."""

    def ignored(folder: str, names: list[str]) -> set[str]:
        is_top = Path(folder) == REPOSITORY
        return {
            name
            for name in names
            if name.startswith(".") or name == "__pycache__" or (is_top and name == "runs")
        }

    shutil.copytree(REPOSITORY, target, symlinks=True, ignore=ignored)
