"""What the text of a script shows that may go wrong in a job: one table, and its lines."""

from __future__ import annotations

import ast
import contextlib
import warnings
from collections import ChainMap
from collections.abc import Iterator
from pathlib import Path

from ...spec import Launch

MAX_FILES = 100
JOB_ID, ADDRESS, SPAWN = "SLURM_JOB_ID", "MASTER_ADDR", "torch.multiprocessing.spawn"
FOUND = {
    JOB_ID: "reads SLURM_JOB_ID: it changes with each successor and resume, so what is saved under "
    "its name is not found again; KIT_RUN_DIR stays",
    ADDRESS: "sets MASTER_ADDR: torchrun has set it for all ranks, which may not meet at another "
    "one, and train separately or wait; init_process_group() alone brings them together",
    SPAWN: "starts ranks of its own: the kit starts them (launch.nproc_per_node on each node); "
    "read RANK, LOCAL_RANK and WORLD_SIZE",
}
_SPAWNS = (SPAWN, "torch.multiprocessing.start_processes", "accelerate.notebook_launcher")
_JOB_IDS = (JOB_ID, "SLURM_JOBID")
# Whoever asks for these does something else where torchrun has started the ranks.
_OF_TORCHRUN = (ADDRESS, "RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")
_OF_KIT = (b"KIT_STOP", b"kit_stop", b"slurm_job_kit")
_LOGS = ("print", "debug", "info", "warning")


def warnings_of(launch: Launch, code: Path) -> Iterator[str]:
    """Yield a line for each row of the table, with its first place: in the script or an import."""
    places: dict[str, str] = {}
    for path, _, reader in _modules(launch, code):
        for what, line in reader.found.items():
            places.setdefault(what, f"{path.relative_to(code)}:{line}")
    for what, place in places.items():
        yield f"warning: {place} {FOUND[what]}"


def may_see_stop(launch: Launch, code: Path) -> bool:
    """Return whether a script may look for KIT_STOP_FILE: its text, or the kit's, asks for it."""
    texts = [text for _, text, _ in _modules(launch, code)]
    return not texts or any(name in text for text in texts for name in _OF_KIT)


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


class _Reader(ast.NodeVisitor):
    """Finds rows of the table, each with its first line, and imports, each with its level."""

    def __init__(self, tree: ast.AST) -> None:
        self.found: dict[str, int] = {}
        self.imports: list[tuple[str, int]] = []
        self.names: dict[str, str] = {}  # local names of what is imported
        self.known: ChainMap[str, bool] = ChainMap()  # what need not be found here
        self.visit(tree)

    def _find(self, what: str, node: ast.expr | ast.stmt) -> None:
        if what not in self.known:
            self.found.setdefault(what, node.lineno)

    def _without(self, names: tuple[str, ...], *nodes: ast.AST) -> None:
        self.known = self.known.new_child(dict.fromkeys(names, True))
        for node in nodes:
            self.visit(node)
        self.known = self.known.parents

    def visit_Import(self, node: ast.Import) -> None:
        for each in node.names:
            self.names[each.asname or each.name] = each.name
            self.imports.append((each.name, 0))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for each in node.names:
            full = ".".join(filter(None, (node.module, each.name)))
            self.names[each.asname or each.name] = full
            self.imports.append((full, node.level))

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        asked = {each.value for each in ast.walk(node.test) if isinstance(each, ast.Constant)}
        ranks = (ADDRESS, SPAWN) if asked & {*_OF_TORCHRUN} else ()
        self._without((JOB_ID,), node.test)
        self._without(ranks, *node.body, *node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._without((JOB_ID,), node.test)
        self._without((), node.body, node.orelse)

    def visit_Compare(self, node: ast.Compare) -> None:
        self._without((JOB_ID,), node.left, *node.comparators)

    def visit_Assign(self, node: ast.Assign) -> None:
        for each in node.targets:
            if isinstance(each, ast.Subscript) and _is_text(each.slice, ADDRESS):
                self._find(ADDRESS, node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        head, dot, rest = ast.unparse(node.func).partition(".")
        name = self._full(head, dot, rest)
        if name in _SPAWNS:
            self._find(SPAWN, node)
        if name in ("os.putenv", "os.environ.update"):
            texts = (_is_text(each, ADDRESS) for word in node.args for each in ast.walk(word))
            if any(texts) or any(each.arg == ADDRESS for each in node.keywords):
                self._find(ADDRESS, node)
        is_log = name.rpartition(".")[2] in _LOGS
        self._without((JOB_ID,) if is_log else (), node.func, *node.args, *node.keywords)

    def _full(self, head: str, dot: str, rest: str) -> str:
        """Return the full name of what is called: `mp.spawn` is torch.multiprocessing.spawn."""
        return self.names.get(head, head) + dot + rest

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and any(name in node.value for name in _JOB_IDS):
            self._find(JOB_ID, node)


def _is_text(node: ast.AST, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text
