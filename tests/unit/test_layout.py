"""The rooms of the house: which package may import which, and what each may contain."""

import ast
import re
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
OWN = ("jobs", "trainer")
FILES = {
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
    for package in OWN
    for path in (REPOSITORY / package).rglob("*.py")
}
CONTRACT = {
    "jobs.spec",
    "jobs.rundir",
    "jobs.checkpoint_names",
    "jobs.records",
    "jobs.errors",
    "jobs.problems",
    "jobs.console",
    "jobs.procfs",
}
# The rooms that each room may import. "" is the top of the package.
MAY_IMPORT = {
    "jobs": {
        "": {"commands", "attempt", "runs", "config", "node", "slurm"},
        "commands": {"attempt", "runs", "config", "node", "slurm"},
        "attempt": {"runs", "node", "slurm"},
        "runs": {"config"},
        "config": {"slurm"},
        "node": set(),
        "slurm": set(),
    },
    "trainer": {
        "": {"checkpoint", "model", "report", "health", "data", "dist"},
        "checkpoint": {"model", "data", "dist"},
        "model": {"data", "dist"},
        "report": {"data", "dist"},
        "data": {"dist"},
        "health": {"dist"},
        "dist": set(),
    },
}
BASE = {"trainer.errors", "trainer.stop", "trainer.seeds", "trainer.user_code", "trainer.events"}
MAX_MODULES = 14
# They run on compute nodes and hosts where there is a Python and perhaps nothing else.
STANDARD_LIBRARY_ONLY = [
    *("jobs.spec", "jobs.rundir", "jobs.records", "jobs.attempt.__main__"),
    *("jobs.node.__main__", "jobs.node.rank"),
    *("jobs.runs.purge", "jobs.slurm.client", "jobs.slurm.site_warnings"),
    "jobs.commands.packages",
]


def room(module):
    """The room of a module, "" at the top of its package."""
    parts = module.split(".")
    is_room = FILES.get(".".join(parts[:2])) and FILES[".".join(parts[:2])].stem == "__init__"
    return parts[1] if len(parts) > 1 and is_room else ""


def imports(module, is_typing_included=False):
    """The modules that a module of ours imports, wherever it does."""
    tree = ast.parse(FILES[module].read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = node.body if is_typing_included else []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from [name for name in inner if name in FILES] or [node.module]


def reached(module):
    """All that a module imports, through modules of ours, too."""
    seen, open_ends = set(), [module]
    while open_ends:
        for name in imports(open_ends.pop()):
            if name not in seen:
                seen.add(name)
                open_ends += [name] if name in FILES else []
    return seen


def foreign(names):
    tops = {name.partition(".")[0] for name in names}
    return tops - sys.stdlib_module_names - set(OWN)


def own(names):
    return {name for name in names if name.partition(".")[0] in OWN}


def test_the_walk_sees_imports_and_rooms():
    assert {"jobs.spec", "jobs.slurm.client"} <= set(imports("jobs.attempt.exclude_nodes"))
    assert "submitit.core.utils" in set(imports("jobs.slurm.executor"))
    assert "torch" in reached("trainer.__main__")
    assert (room("jobs.spec"), room("jobs.slurm.client"), room("jobs.slurm")) == (
        "",
        "slurm",
        "slurm",
    )


@pytest.mark.parametrize("module", sorted(name for name in FILES if name.startswith("jobs")))
def test_jobs_imports_neither_torch_nor_the_trainer(module):
    found = reached(module)
    assert "torch" not in foreign(found)
    assert not [name for name in found if name.partition(".")[0] == "trainer"]


@pytest.mark.parametrize("module", sorted(FILES))
def test_an_import_goes_down_the_list_of_rooms(module):
    package = module.partition(".")[0]
    ground = CONTRACT if package == "jobs" else CONTRACT | BASE
    for name in own(imports(module, is_typing_included=True)) - ground - {"jobs", "trainer"}:
        assert name.partition(".")[0] == package, f"{module} imports {name}"
        allowed = MAY_IMPORT[package][room(module)] | {room(module)}
        assert module not in ground and room(name) in allowed, f"{module} imports {name}"


@pytest.mark.parametrize("module", sorted(CONTRACT))
def test_the_contract_imports_only_itself(module):
    assert own(imports(module, is_typing_included=True)) <= CONTRACT


@pytest.mark.parametrize("module", sorted(name for name in FILES if name.startswith("trainer")))
def test_the_trainer_imports_of_jobs_only_the_contract(module):
    found = own(imports(module, is_typing_included=True))
    assert {name for name in found if name.startswith("jobs")} <= CONTRACT


@pytest.mark.parametrize("module", STANDARD_LIBRARY_ONLY)
def test_what_runs_on_any_node_needs_the_standard_library_only(module):
    assert foreign(reached(module)) == set()


@pytest.mark.parametrize(
    "name", [f"{package}.{room}" for package in OWN for room in MAY_IMPORT[package] if room]
)
def test_a_room_has_a_line_for_each_of_its_files(name):
    folder = FILES[name].parent
    modules = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    described = re.findall(
        r"^- (\w+): .+$", ast.get_docstring(ast.parse(FILES[name].read_text())), re.M
    )
    assert sorted(described) == modules
    assert len(modules) <= MAX_MODULES


# Between reading and deciding: pure functions of values, without the run directory or a path.
PURE = ("jobs.attempt.interpret", "jobs.attempt.decision")


@pytest.mark.parametrize("module", PURE)
def test_what_decides_reads_nothing(module):
    assert not {"os", "pathlib", "jobs.rundir", "jobs.runs"} & reads(module)
    tree = ast.parse(FILES[module].read_text(encoding="utf-8"))
    types = [
        ast.unparse(argument.annotation)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for argument in (*node.args.args, *node.args.kwonlyargs)
        if argument.annotation is not None
    ]
    assert types and not [name for name in types if "RunDir" in name or "Path" in name]


def reads(module):
    names = set(imports(module, is_typing_included=True))
    return names | {name.rpartition(".")[0] for name in names}


# They parse a file of the run directory for themselves; the list only shrinks.
PARSES_RUN_FILES = {
    "trainer.checkpoint.checkpoints",
    "trainer.checkpoint.ownership",
    "trainer.checkpoint.reader",
    "trainer.errors",
    "trainer.health.lead_time",
    "trainer.health.preflight",
    "trainer.health.watchdog",
    "trainer.run",
}
JSON_OF_RUN_FILES = {"read_json", "read_jsonl", "write_json", "append_jsonl"}


def test_only_the_records_know_the_content_of_a_run_file():
    found = {
        module
        for module in FILES
        for name in imports(module)
        for node in ast.walk(ast.parse(FILES[module].read_text(encoding="utf-8")))
        if name == "jobs.rundir"
        and isinstance(node, ast.ImportFrom)
        and JSON_OF_RUN_FILES & {alias.name for alias in node.names}
    }
    assert found - {"jobs.records"} == PARSES_RUN_FILES


# JSON that is no file of a run directory: a message, a manifest with a check sum, one line of
# metrics.jsonl for display, the spec.
PARSES_OTHER_JSON = {
    *("jobs.records", "jobs.rundir", "jobs.spec", "jobs.runs.compare"),
    *("trainer.checkpoint.reader", "trainer.dist.run_handle", "trainer.health.rank_report"),
}


def test_json_is_parsed_in_few_places():
    calls = {
        module
        for module, path in FILES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.loads", "json.load")
    }
    assert calls == PARSES_OTHER_JSON


def test_every_package_is_a_known_room():
    rooms = {name for name, path in FILES.items() if path.stem == "__init__"} - set(OWN)
    assert rooms == {f"{package}.{room}" for package in OWN for room in MAY_IMPORT[package] if room}
