"""What the text of a script shows that may go wrong in a job: one table, and its lines."""

from __future__ import annotations

import ast
import contextlib
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from ...spec import Launch

MAX_FILES = 100
JOB_ID, ADDRESS, SPAWN = "SLURM_JOB_ID", "MASTER_ADDR", "torch.multiprocessing.spawn"
FOUND = {
    JOB_ID: "reads SLURM_JOB_ID: it changes with each successor and resume, so what is saved under "
    "its name is not found again; KIT_RUN_DIR and KIT_CHECKPOINT_DIR stay",
    ADDRESS: "sets MASTER_ADDR: torchrun has set it for all ranks, which may not meet at another "
    "one, and train separately or wait; init_process_group() alone brings them together",
    SPAWN: "starts ranks of its own: the kit starts them (launch.nproc_per_node on each node); "
    "read RANK, LOCAL_RANK and WORLD_SIZE",
}
_SPAWNS = (
    *(SPAWN, "torch.multiprocessing.start_processes", "torch.multiprocessing.spawn.spawn"),
    *("torch.distributed.run.main", "torch.distributed.launcher.api.elastic_launch"),
    *("accelerate.notebook_launcher", "accelerate.launchers.notebook_launcher"),
)
_SETS = ("os.putenv", "os.environ.update")
_JOB_IDS = (JOB_ID, "SLURM_JOBID")
# A condition that asks whether torchrun has started the ranks.
_OF_TORCHRUN = re.compile(
    r"'(MASTER_ADDR|(LOCAL_)?RANK|WORLD_SIZE|TORCHELASTIC_RUN_ID)'|\blocal_rank\b|is_torchelastic"
)
_OF_KIT = (b"KIT_STOP", b"kit_stop", b"slurm_job_kit")
_ELSEWHERE = (b"file://", b"FileStore", b"mpi4py", b"horovod", b"jax.distributed")
_LOGS = ("print", "debug", "info", "warning")


def warnings_of(launch: Launch, code: Path) -> Iterator[str]:
    """Yield a line for each row of the table, with its first place: in the script or an import."""
    places: dict[str, str] = {}
    for path, _, reader in _modules(launch, code):
        for what, line in reader.found.items():
            places.setdefault(what, f"{path.relative_to(code)}:{line}")
    for name in (word.rpartition("=")[2] for word in launch.args):
        if line := _line_of_job_id(code / name):
            places.setdefault(JOB_ID, f"{name}:{line}")
    for what, place in places.items():
        yield f"warning: {place} {FOUND[what]}"


def _line_of_job_id(config: Path) -> int | None:
    """Return the line of a script's config that has the id; None for any other file."""
    if config.suffix in (".yaml", ".yml", ".json", ".toml"):
        with contextlib.suppress(OSError, ValueError):
            for number, line in enumerate(config.read_text("utf-8").splitlines(), 1):
                if any(name in line.partition("#")[0] for name in _JOB_IDS):
                    return number
    return None


def may_see_stop(launch: Launch, code: Path) -> bool:
    """Return whether a script may look for KIT_STOP_FILE: its text, or the kit's, asks for it."""
    return _has_any(launch, code, _OF_KIT, unread=True)


def may_meet_elsewhere(launch: Launch, code: Path) -> bool:
    """Return whether ranks may meet at a file, or by another library than torch."""
    return _has_any(launch, code, _ELSEWHERE, unread=False)


def _has_any(launch: Launch, code: Path, names: tuple[bytes, ...], unread: bool) -> bool:
    """Return whether a text has one of the names; `unread` where no text can be read."""
    texts = [text for _, text, _ in _modules(launch, code)]
    return any(name in text for text in texts for name in names) if texts else unread


def _modules(launch: Launch, code: Path) -> Iterator[tuple[Path, bytes, _Reader]]:
    """Yield the script, and what it imports of its own folder and the frozen code: path, text."""
    written = launch.script or f"{str(launch.module).replace('.', '/')}.py"
    first = code / written
    if launch.module and not first.is_file():
        first = first.with_suffix("") / "__main__.py"
    seen, left = {first}, [first]
    while left:
        path = left.pop(0)
        with contextlib.suppress(OSError, SyntaxError, ValueError, RecursionError):
            text = path.read_bytes()
            with warnings.catch_warnings(action="ignore"):  # of Python's grammar
                reader = _Reader(ast.parse(text))
            for name, level in reader.imports:
                tops = [path.parents[level - 1]] if level else [first.parent, code]
                new = {*_files_of(name, tops)} - seen
                if len(seen) + len(new) <= MAX_FILES:
                    seen |= new
                    left += sorted(new)
            yield path, text, reader


def _files_of(name: str, tops: list[Path]) -> Iterator[Path]:
    """Yield the files of a module in these folders; the name may be that of something in it."""
    for module in (name, name.rpartition(".")[0]):
        for path in (top / module.replace(".", "/") for top in tops if module):
            yield from filter(Path.is_file, (path.with_suffix(".py"), path / "__init__.py"))


class _Reader:
    """Finds rows of the table, each with its first line, and imports, each with its level."""

    def __init__(self, tree: ast.Module) -> None:
        self.imports: list[tuple[str, int]] = []
        self.names: dict[str, str] = {}  # local names of what is imported
        nodes = [*ast.walk(tree)]
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                of = getattr(node, "module", None)
                for each in node.names:
                    full = f"{of}.{each.name}" if of else each.name
                    self.names[each.asname or each.name] = full
                    self.imports.append((full, getattr(node, "level", 0)))
        fine = {(x, what) for node in nodes for y, what in self._fine(node) for x in ast.walk(y)}
        rows = ((node, self._row(node)) for node in nodes)
        # expressions only, which have a line
        lines = [
            (getattr(x, "lineno", 0), what) for x, what in rows if what and (x, what) not in fine
        ]
        self.found = {what: line for line, what in sorted(lines, reverse=True)}

    def _full(self, call: ast.Call) -> str:
        """Return the full name of what is called: `mp.spawn` is torch.multiprocessing.spawn."""
        head, dot, rest = ast.unparse(call.func).partition(".")
        return self.names.get(head, head) + dot + rest

    def _row(self, node: ast.AST) -> str | None:
        match node:
            case ast.Constant(value=str(text)) if any(name in text for name in _JOB_IDS):
                return JOB_ID
            case ast.Subscript(slice=ast.Constant(value="MASTER_ADDR"), ctx=ast.Store()):
                return ADDRESS
            case ast.Call() if self._full(node) in _SPAWNS:
                return SPAWN
            case ast.Call() if self._full(node) in _SETS and ADDRESS in _texts(node):
                return ADDRESS
        return None

    def _fine(self, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
        """Yield the parts of a node in which a row of the table does no harm."""
        match node:
            case ast.Expr(value=ast.Constant()) | ast.Compare():  # a docstring
                yield node, JOB_ID
            case ast.If(test=test) | ast.IfExp(test=test):
                yield test, JOB_ID
                if isinstance(node, ast.If) and _OF_TORCHRUN.search(ast.unparse(test)):
                    yield from ((node, what) for what in (ADDRESS, SPAWN))
            case ast.Call() if self._full(node).rpartition(".")[2] in _LOGS:
                yield node, JOB_ID


def _texts(node: ast.AST) -> set[object]:
    """Return the texts in a node, and the names of arguments."""
    return {
        getattr(x, "arg", getattr(x, "value", None))
        for x in ast.walk(node)
        if isinstance(x, ast.keyword | ast.Constant)
    }
