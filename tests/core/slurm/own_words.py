"""The words of Slurm itself, from its library: of the installed Slurm and of each fetched one."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
_ASK = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
numbers, names = json.loads(sys.argv[2])
word_of = getattr(library, next(name for name in names if hasattr(library, name)))
word_of.restype, word_of.argtypes = ctypes.c_char_p, [ctypes.c_int]
print(json.dumps([word_of(number).decode() for number in numbers]))
"""


def _libraries() -> list[Path]:
    installed = sorted(Path("/usr").glob("lib*/**/slurm*/libslurmfull.so"))
    return [*installed[:1], *sorted(REPOSITORY.glob(".slurm/*/lib/slurm/libslurmfull.so"))]


def _is_fetched(library: Path) -> bool:
    return REPOSITORY in library.parents


_NONE = pytest.param(Path(), marks=pytest.mark.skip("no Slurm: no libslurmfull.so below /usr/lib"))
each_slurm = pytest.mark.parametrize(
    "library",
    _libraries() or [_NONE],
    ids=lambda library: library.parts[-4] if _is_fetched(library) else "installed",
)


def words(library: Path, numbers: Iterable[int], *names: str) -> set[str]:
    """Returns what the first function that the library has of these names returns for numbers."""
    argv = [sys.executable, "-c", _ASK, str(library), json.dumps([list(numbers), names])]
    if _is_fetched(library):  # it needs the libraries that came with it, the C library, too
        folder = library.parents[1]
        paths = f"{folder}/slurm:{folder}:/usr/lib:/usr/lib/x86_64-linux-gnu"
        loader = [str(next(folder.glob("ld-linux*.so.*"))), "--library-path", paths]
        argv = [*loader, str(Path(sys.executable).resolve()), *argv[1:]]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60)
    return set(json.loads(done.stdout))
