"""What the text of a script shows that may go wrong in a job: one table, and its lines."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...contract.spec import Launch

MAX_FILES = 100


class Row(NamedTuple):
    """Words of a line, what they may do in a job, and words of a line that shows they do not."""

    words: re.Pattern[str]
    what: str
    unless: re.Pattern[str]


# Asks whether torchrun has started the ranks: then the other branch is of another launcher.
_OF_TORCHRUN = re.compile(
    r"""\bif\b.*(['"](MASTER_ADDR|(LOCAL_)?RANK|WORLD_SIZE|TORCHELASTIC_RUN_ID)['"] (not )?in\b"""
    r"|is_torchelastic|local_rank == -1)"
)
ROWS = (
    Row(
        re.compile(
            r"""^(?!\s*(el)?if\b|\s*(print|log\w*\.\w+)\().*"""
            r"""((environ(\.get\(|\[)|getenv\()['"]|\$\{?|env:)SLURM_JOB_?ID"""
        ),
        "reads SLURM_JOB_ID: it changes with each successor and resume, so what is saved under "
        "its name is not found again; KIT_RUN_DIR and KIT_CHECKPOINT_DIR stay",
        re.compile(r"(?!)"),
    ),
    Row(
        re.compile(
            r"""environ\[['"]MASTER_ADDR['"]\] *=[^=]|(putenv\(|\.update\(.*)['"]?\bMASTER_ADDR"""
        ),
        "sets MASTER_ADDR: torchrun has set it for all ranks, which may not meet at another one, "
        "and train separately or wait; init_process_group() alone brings them together",
        _OF_TORCHRUN,
    ),
    Row(
        re.compile(
            r"\b(mp|multiprocessing)\.(spawn|start_processes)\(|\bnotebook_launcher\("
            r"|from torch\.multiprocessing(\.spawn)? import .*\b(spawn|start_processes)\b"
            r"|(from|import) torch\.distributed\.(run|launcher)\b"
        ),
        "starts ranks of its own: the kit starts them (launch.nproc_per_node on each node); read "
        "RANK, LOCAL_RANK and WORLD_SIZE",
        _OF_TORCHRUN,
    ),
)
_ELSEWHERE = re.compile(r"file://|FileStore|mpi4py|horovod|jax\.distributed")
_IMPORT = re.compile(r"^\s*(?:from\s+(\.*)([\w.]*)\s+)?import\s+(\([^)]*\)|[\w., ]+)", re.MULTILINE)


def warnings_of(launch: Launch, code: Path) -> Iterator[str]:
    """Yield a line for each row of the table, with its first place: in the script or an import."""
    names = (word.rpartition("=")[2] for word in launch.args)
    configs = (code / x for x in names if Path(x).suffix in (".yaml", ".yml", ".json", ".toml"))
    texts = {path: text for path in configs if (text := _text_of(path))}
    left = [*ROWS]
    for path, text in (_modules(launch, code) | texts).items():
        lines = [line.partition("#")[0] for line in text.splitlines()]
        for row in [*left]:
            found = (n for n, line in enumerate(lines, 1) if row.words.search(line))
            number = next(found, None)
            if number is not None and not any(map(row.unless.search, lines)):
                yield f"warning: {path.relative_to(code)}:{number} {row.what}"
                left.remove(row)


def may_meet_elsewhere(launch: Launch, code: Path) -> bool:
    """Return whether ranks may meet at a file, or by another library than torch."""
    return any(map(_ELSEWHERE.search, _modules(launch, code).values()))


def _modules(launch: Launch, code: Path) -> dict[Path, str]:
    """Return the texts of the script, and of what it imports of its folder and the frozen code."""
    first = code / (launch.script or f"{str(launch.module).replace('.', '/')}.py")
    if launch.module and not first.is_file():
        first = first.with_suffix("") / "__main__.py"
    texts: dict[Path, str] = {}
    left = [first]
    while left and len(texts) < MAX_FILES:
        path = left.pop(0)
        if path in texts or not (text := _text_of(path)):
            continue
        texts[path] = text
        for dots, module, names in _IMPORT.findall(text):
            tops = [*path.parents][len(dots) - 1 :][:1] if dots else [first.parent, code]
            for name in re.findall(r"[\w.]+", names):
                for each in (module, f"{module}.{name}".strip(".")):
                    places = [top / each.replace(".", "/") for top in tops if each]
                    left += [x.with_suffix(".py") for x in places]
                    left += [x / "__init__.py" for x in places]
    return texts


def _text_of(path: Path) -> str:
    """Return the text of a file; empty where it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return path.read_text("utf-8")
    return ""
