"""Which files of a frozen code results may depend on, and the digest of these files.

Standard library only.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..rundir import folder_of
from ..spec import Spec, Train
from . import code_snapshot

# Files at the top of a repository that no run reads.
LEFT_OUT_FILES = (
    *("Makefile", "LICENSE", "pyproject.toml"),
    *("requirements.lock", "requirements-dev.lock"),
)
LEFT_OUT_FOLDERS = ("docs", "tests")
DOCUMENTS = (".md", ".rst")
SPECS = (".yaml", ".yml", ".json")  # in configs/: a run has its own


def name_of(link: Path) -> str | None:
    """Return the name of the frozen code that a run directory's link leads to; None without one."""
    folder = folder_of(link)
    return None if folder is None else folder.name


@dataclass(frozen=True)
class UsedCode:
    """What a spec names of the frozen code.

    folders: of the modules; their files count, except documents. paths: files, folders and
    patterns in arguments; they count whatever they are, because a part may read them.
    """

    folders: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()

    def has_path(self, name: str) -> bool:
        """Return whether an argument names this file, or a folder that it lies in."""
        return any(
            name == path or name.startswith(f"{path}/") or fnmatch.fnmatchcase(name, path)
            for path in self.paths
        )


def digest_of(code: Path, spec: Spec, kit: Path | None = None) -> str | None:
    """Return SHA-256 of the files that results may depend on; None if the folder is no frozen code.

    kit: the frozen kit.
    """
    try:
        names = code_snapshot.frozen_names(code)
    except OSError:
        return None
    used = used_code(spec)
    paths = [code / name for name in names if has_weight(name, used)]
    code_digest = code_snapshot.digest(code, paths)
    return (
        code_digest
        if kit is None
        else hashlib.sha256(f"{code_digest} {kit.name}".encode()).hexdigest()
    )


def used_code(spec: Spec) -> UsedCode:
    """Return the folders of the modules the spec names, and the relative paths in its arguments."""
    train, launch = spec.train, spec.launch
    texts = [getattr(train, name) for name in Train.__dataclass_fields__]
    modules = [text.partition(":")[0] for text in texts if isinstance(text, str) and ":" in text]
    modules += [launch.module] if launch.module else []
    files = [module.replace(".", "/") for module in modules]
    files += [launch.script] if launch.script and not os.path.isabs(launch.script) else []
    folders = {str(PurePosixPath(file).parent) for file in files} - {"."}
    arguments = [*(value for value in texts if isinstance(value, dict)), launch.args, launch.inputs]
    words = (word.rpartition("=")[2] for word in _texts_in(arguments))  # --config=x.yaml
    paths = {os.path.normpath(word) for word in words if word and "\0" not in word}
    return UsedCode(tuple(sorted(folders)), tuple(sorted(paths - {"."})))


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts_in(item)


def has_weight(name: str, used: UsedCode) -> bool:
    """Return whether results may depend on a frozen file: not on documents, tests and specs.

    Unless the spec names them in its arguments.
    """
    path = PurePosixPath(name)
    if used.has_path(name):
        return True
    if path.suffix in DOCUMENTS or any(part.startswith(".") for part in path.parts):
        return False
    if any(name.startswith(f"{folder}/") for folder in used.folders):
        return True
    is_spec = path.parts[0] == "configs" and path.suffix in SPECS
    return not (is_spec or path.parts[0] in LEFT_OUT_FOLDERS or name in LEFT_OUT_FILES)
