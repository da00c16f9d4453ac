"""The folders of the kit: which may import which, and what the files of each may do."""

import ast
import graphlib
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from slurm_job_kit.jobs.plugins import PLUGINS

REPOSITORY = Path(__file__).resolve().parents[2]
KIT = "slurm_job_kit."  # the package by which other code imports them
OWN = ("jobs", "trainer")
FILES = {
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
    for package in OWN
    for path in (REPOSITORY / package).rglob("*.py")
}
# The folders that the files of each may import, besides their own. "" is the top of the package.
GROUND = {"base", "contract"}
JOBS = {
    "base": set(),
    "contract": {"base"},
    "slurm": GROUND,
    "node": GROUND,
    "config": GROUND | {"slurm"},
    "runs": GROUND | {"config", "slurm"},
    "attempt": GROUND | {"runs", "config", "node", "slurm"},
    "commands": GROUND | {"attempt", "runs", "config", "node", "slurm"},
    "": GROUND | {"commands", "attempt", "runs", "config", "node", "slurm"},
}
TRAINER = {
    "process": set(),
    "data": {"process"},
    "strategy": {"process", "data"},
    "model": {"process", "data", "strategy"},
    "checkpoint": {"process", "data", "strategy", "model"},
    "training": {"process", "data", "strategy", "model", "checkpoint"},
    "": {"process", "data", "strategy", "model", "checkpoint", "training"},
}
# What any file may import: the list of plugins, and the hooks, whose imports are of types only.
EVERYWHERE = {"jobs", "trainer", "jobs.plugins", "jobs.hooks", "trainer.hooks"}
# At the top of trainer/: what all its folders import. It imports none of them but for hooks.
TOP_OF_TRAINER = {
    f"trainer.{name}" for name in ("contract", "parts", "errors", "seeds", "user_code")
}
# They handle stop signals before they import anything that takes time, such as the contract.
SIGNALS_FIRST = {"trainer.process.stop", "trainer.plugins.samples.worker_init"}
# Folders that run on hosts where there is a Python and perhaps nothing else, also through what they
# import. A rank imports torch after its stop signals; what forks fast imports none.
STANDARD_LIBRARY_ONLY = re.compile(
    r"jobs\.(base|contract|node|attempt|slurm\.(ask|job|cluster))(\..+)?|jobs\.runs\.scratch_purge"
    r"|trainer\.(errors|process\.(events|stop|watcher))"
    r"|trainer\.checkpoint\.(commit|recovery|writer)|trainer\.plugins\.integrations\.whole"
)
# A plugin imports the core, and another plugin only where it stands here.
PLUGIN_IMPORTS = {"report": {"sweeps"}}  # which names the points of a sweep


def plugin(module):
    """The plugin that can be deleted, of which a module is; "" for one of the core."""
    parts = module.split(".")
    return parts[2] if len(parts) > 2 and parts[1] == "plugins" else ""


CORE = [name for name in FILES if not plugin(name)]


def folder(module):
    """The folder of a module below its package, "" at the top."""
    parts = module.split(".")
    is_folder = FILES.get(".".join(parts[:2])) and FILES[".".join(parts[:2])].stem == "__init__"
    return parts[1] if len(parts) > 1 and is_folder else ""


@cache
def tree(module):
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


@cache
def nodes(module):
    """All nodes of a module's syntax tree."""
    return tuple(ast.walk(tree(module)))


@cache
def imports(module, is_typing_included=False):
    """The modules that a module of ours imports, wherever it does."""
    for_typing = {
        inner
        for node in nodes(module)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    names = []
    for node in nodes(module):
        if node in for_typing and not is_typing_included:
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = absolute(module, node)
            inner = [f"{source}.{alias.name}" for alias in node.names]
            names += [name for name in inner if name in FILES] or [source]
    return tuple(names)


def absolute(module, node):
    """The full name of what a `from` statement imports from."""
    if not node.level:
        assert not own([node.module]), "a user's repository may have packages of these names"
        return node.module.removeprefix(KIT)
    parts = module.split(".")
    up = node.level - (FILES[module].stem == "__init__")
    return ".".join([*parts[: len(parts) - up], *filter(None, [node.module])])


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


def test_jobs_reaches_neither_torch_nor_the_trainer():
    arrows = {(module, name) for module in FILES for name in reached(module)}
    assert not [
        (module, name)
        for module, name in arrows
        if module.startswith("jobs") and name.partition(".")[0] in ("torch", "trainer")
    ]


def test_the_core_imports_nothing_of_a_plugin():
    arrows = [
        (module, name)
        for module in FILES
        for name in imports(module, is_typing_included=True)
        if plugin(name) not in {"", plugin(module), *PLUGIN_IMPORTS.get(plugin(module), ())}
    ]
    assert arrows == []


def test_each_plugin_has_a_line_and_a_folder():
    folders = {
        path.name
        for package in OWN
        for path in (REPOSITORY / package / "plugins").iterdir()
        if path.is_dir() and path.name != "__pycache__"
    }
    assert folders == {*PLUGINS}


def test_each_hook_of_a_plugin_has_the_types_of_the_core():
    for name, of_plugin in PLUGINS.items():
        for package, hooks in (("jobs", of_plugin.hooks), ("trainer", of_plugin.trainer_hooks)):
            for hook in hooks:
                found = function_of(f"{package}.plugins.{name}.hooks", hook)
                home = f"trainer.{hook}" if hook == "parts" else f"{package}.hooks"
                assert ast.unparse(found.args) == ast.unparse(function_of(home, hook).args)


def function_of(module, name):
    return next(x for x in tree(module).body if isinstance(x, ast.FunctionDef) and x.name == name)


def test_a_folder_imports_only_those_below_it():
    assert [found for module in CORE for found in imports_upwards(module)] == []


def imports_upwards(module):
    """(module, imported module) for each import that the table of folders does not allow."""
    package, here = module.partition(".")[0], folder(module)
    if module in {"jobs.hooks", "trainer.hooks", "trainer.contract"} | SIGNALS_FIRST:
        return
    allowed = (JOBS if package == "jobs" else TRAINER).get(here, set()) | {here}
    for name in own(imports(module, is_typing_included=True)) - EVERYWHERE:
        is_ground = package == "trainer" and name in TOP_OF_TRAINER
        is_below = folder(name) in allowed and module not in TOP_OF_TRAINER
        if not is_ground and not (is_below and name.partition(".")[0] == package):
            yield module, name


def test_no_module_imports_itself_through_others():
    """Not by an import for types either."""
    graph = {name: {each for each in imports(name, True) if each in FILES} for name in FILES}
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the modules


def test_the_trainer_imports_of_jobs_only_base_and_contract_by_one_module():
    for module in (name for name in FILES if name.startswith("trainer")):
        names = {name for name in own(imports(module, True)) if name.startswith("jobs")}
        if not plugin(module):
            assert not names or module in {"trainer.contract", "trainer.process.stop"}
        if module in SIGNALS_FIRST:
            assert names == {"jobs.base.stop_signals"}
        others = {name for name in names if folder(name) not in GROUND} - EVERYWHERE
        assert not {name for name in others if plugin(name) != plugin(module)}, module


def test_what_runs_on_any_node_needs_the_standard_library_only():
    modules = filter(STANDARD_LIBRARY_ONLY.fullmatch, FILES)
    imported = {module: foreign(reached(module)) for module in modules}
    assert {module: names for module, names in imported.items() if names} == {}


ROOMS = {f"jobs.{room}" for room in JOBS}  # docs/architecture.md has their order
FOLDERS = [name for name in FILES if FILES[name].stem == "__init__" and "." in name]


@pytest.mark.parametrize("name", sorted({*FOLDERS} - ROOMS))
def test_a_folder_has_a_line_for_each_of_its_files(name):
    here = FILES[name].parent
    modules = sorted(path.stem for path in here.glob("*.py") if path.stem != "__init__")
    described = re.findall(r"^- (\w+): .+$", ast.get_docstring(tree(name)) or "", re.M)
    assert sorted(described) == modules


# Between reading and deciding: pure functions of values (jobs.runs.facts), without the run
# directory or a path.
PURE = ("jobs.runs.evidence", "jobs.runs.results", "jobs.attempt.decision")


@pytest.mark.parametrize("module", PURE)
def test_what_decides_reads_nothing(module):
    found = imports(module, is_typing_included=True)
    names = {name for name in found if not name.startswith("jobs.runs.facts")}
    names |= {name.rpartition(".")[0] for name in names}
    assert not {"os", "pathlib", "jobs.contract.rundir", "jobs.runs"} & names


@cache
def used_names(module):
    """`os.execv` for each such expression, and for `from os import execv`; imported modules."""
    names = set()
    for node in nodes(module):
        if isinstance(node, ast.Attribute):
            names.add(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


SLURM_COMMANDS = {
    *("sbatch", "srun", "salloc", "sattach", "scancel", "scontrol", "sinfo", "squeue", "sacct"),
    *("sacctmgr", "sbcast", "sdiag", "sprio", "sreport", "sshare", "sstat", "strigger"),
}
PROCESSES = (
    r"(.+\.)?(subprocess|multiprocessing|pty)(\..+)?"
    r"|os\.(exec[lv].*|spawn.*|posix_spawn.*|fork.*|system|popen)"
)
RENAMES = r"os\.(replace|renames?|link)|shutil\.move|.+\.(rename|hardlink_to)"


@pytest.mark.parametrize(
    ("among", "names", "folders"),
    [
        (
            CORE,
            PROCESSES,
            {"jobs": {"slurm", "node", "runs", "attempt", "commands"}, "trainer": {"", "process"}},
        ),
        (CORE, r"job_list\.(life_of|ask|queue)|run_lock\.life_of", {"jobs": {"runs", "commands"}}),
        (CORE, RENAMES, {"jobs": {"base", "contract", "runs"}, "trainer": {"checkpoint"}}),
        (FILES, r"(.+\.)?files\.(read|write|append)_jsonl?", {"jobs": {"contract"}}),
        (FILES, r"submitit(\..+)?", {"jobs": {"slurm"}}),
    ],
    ids=["start processes", "ask about jobs", "rename files", "read run files", "import submitit"],
)
def test_only_some_folders(among, names, folders):
    pattern = re.compile(names)
    found = {module for module in among if any(map(pattern.fullmatch, used_names(module)))}
    wrong = [m for m in found if folder(m) not in folders.get(m.partition(".")[0], ())]
    assert found and not wrong


def test_only_jobs_slurm_runs_slurms_commands():
    words = {
        (module, node.value)
        for module in FILES
        if not module.startswith("jobs.slurm")
        for node in nodes(module)
        if isinstance(node, ast.Constant) and node.value in SLURM_COMMANDS
    }
    assert not words, "a command's name as a value: give a module of jobs.slurm a function for it"


MAX_FUNCTION_LINES = 50


def test_functions_are_short():
    long_ones = [
        f"{module}: {node.name}"
        for module in FILES
        for node in nodes(module)
        if isinstance(node, ast.FunctionDef)
        and (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES
    ]
    assert long_ones == []


# os._exit is Python's.
PATCHED = re.compile(r"""setattr\(\s*(?!\w*\.?os\b)[^"']*["'](?:[\w.]+\.)?_\w+["']""")


def test_no_test_patches_a_private_name():
    tests = [*(REPOSITORY / "tests").rglob("*.py")]
    assert [path for path in tests if PATCHED.search(path.read_text(encoding="utf-8"))] == []
