"""Which files of a frozen code results may depend on, and the digest of these files.

Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from jobs.runs import code_snapshot
from jobs.spec import Spec, Train

# Files at the top of a repository that no run reads.
LEFT_OUT_FILES = (
    *("Makefile", "LICENSE", "pyproject.toml"),
    *("requirements.lock", "requirements-dev.lock"),
)
LEFT_OUT_FOLDERS = ("docs", "tests")
DOCUMENTS = (".md", ".rst")
SPECS = (".yaml", ".yml", ".json")  # in configs/: a run has its own


def name_of(link: Path) -> str | None:
    """The name of the frozen code that a link of a run directory leads to; None without one."""
    return link.resolve().name if link.is_symlink() else None


def digest_of(code: Path, spec: Spec) -> str | None:
    """SHA-256 of the files that results may depend on; None for a folder that is no frozen code."""
    try:
        names = code_snapshot.frozen_names(code)
    except OSError:
        return None
    used = folders_of(spec)
    paths = [code / name for name in names if has_weight(name, used)]
    return code_snapshot.digest(code, paths)


def folders_of(spec: Spec) -> tuple[str, ...]:
    """The folders of the modules that the spec names, except the top one: their files all count."""
    train, launch = spec.train, spec.launch
    texts = [getattr(train, name) for name in Train.__dataclass_fields__]
    modules = [text.partition(":")[0] for text in texts if isinstance(text, str) and ":" in text]
    modules += [launch.module] if launch.module else []
    files = [module.replace(".", "/") for module in modules]
    files += [launch.script] if launch.script and not os.path.isabs(launch.script) else []
    folders = {str(PurePosixPath(file).parent) for file in files}
    return tuple(sorted(folders - {"."}))


def has_weight(name: str, used: Sequence[str]) -> bool:
    """Whether results may depend on a frozen file: not on documents, tests and specs.

    used: folders whose files count, whatever folder they lie in.
    """
    path = PurePosixPath(name)
    if path.suffix in DOCUMENTS or any(part.startswith(".") for part in path.parts):
        return False
    if any(name.startswith(f"{folder}/") for folder in used):
        return True
    is_spec = path.parts[0] == "configs" and path.suffix in SPECS
    return not (is_spec or path.parts[0] in LEFT_OUT_FOLDERS or name in LEFT_OUT_FILES)
