"""The rooms of the house: which package may import which, and what each may contain."""

import ast
import graphlib
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from slurm_job_kit.jobs.rooms import ROOMS

REPOSITORY = Path(__file__).resolve().parents[2]
KIT = "slurm_job_kit."  # the package by which other code imports them
OWN = ("jobs", "trainer")
FILES = {
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
    for package in OWN
    for path in (REPOSITORY / package).rglob("*.py")
}
TOP_OF_CONTRACT = {
    f"jobs.{name}"
    for name in (
        *("spec", "rundir", "shared_files", "errors", "problems", "console", "procfs", "rooms"),
        *("installation", "log_text", "gpus", "batch_sizes", "environment", "kinds"),
        *("known_causes", "stop_signals"),
    )
}
# They import only types.
HOOKS = {"jobs.hooks", "trainer.hooks"}
RECORDS = {name for name in FILES if name.startswith("jobs.records")}
CHECKPOINT = {name for name in FILES if name.startswith("jobs.checkpoint")}
CONTRACT = TOP_OF_CONTRACT | RECORDS | CHECKPOINT
BELOW_COMMANDS = {"attempt", "runs", "config", "node", "slurm"}
# The rooms that each room may import. "" is the top of the package.
MAY_IMPORT = {
    "jobs": {
        "": {"commands", *BELOW_COMMANDS},
        "commands": BELOW_COMMANDS,
        "attempt": {"runs", "node", "slurm"},
        "runs": {"config", "node", "slurm"},
        "config": {"slurm"},
        "node": set(),
        "slurm": set(),
        "records": set(),
        "checkpoint": set(),
        "rooms": set(),
    },
    "trainer": {
        "": {"checkpoint", "model", "strategy", "logging", "data", "process"},
        "checkpoint": {"model", "strategy", "data", "process"},
        "model": {"strategy", "data", "process"},
        "strategy": {"data", "process"},
        "logging": {"data", "process"},
        "data": {"process"},
        "process": set(),
        "rooms": set(),
    },
}
BASE = {
    f"trainer.{x}" for x in ("contract", "parts", "errors", "stop", "seeds", "user_code", "events")
}
# They handle stop signals before they import anything that takes time, such as the contract.
SIGNALS_FIRST = ("trainer.stop", "trainer.rooms.samples.worker_init")
# They run on compute nodes and hosts where there is a Python and perhaps nothing else.
STANDARD_LIBRARY_ONLY = [
    *("jobs.spec", "jobs.rundir", "jobs.shared_files", *sorted(RECORDS | CHECKPOINT)),
    *("jobs.attempt.__main__", "jobs.node.__main__", "jobs.node.rank"),
    *("jobs.runs.scratch_purge", "jobs.slurm.client", "jobs.slurm.site"),
    "jobs.commands.packages",
    # A rank imports torch after its stop signals; a process without torch checks and forks fast.
    *("trainer.errors", "trainer.events", "trainer.stop", "trainer.rooms.integrations.whole"),
    *(f"trainer.checkpoint.{name}" for name in ("commit", "recovery", "writer")),
]

# A room imports the core, and another room only where it stands here.
ROOM_IMPORTS = {"report": {"sweeps"}}  # which names the points of a sweep


def deletable(module):
    """The room that can be deleted, of which a module is; "" for one of the core."""
    parts = module.split(".")
    return parts[2] if len(parts) > 2 and parts[1] == "rooms" else ""


CORE = [name for name in FILES if not deletable(name)]


def present(names):
    """Those of a list whose room is not deleted."""
    return {name for name in names if name in FILES or not deletable(name)}


def room(module):
    """The room of a module, "" at the top of its package."""
    parts = module.split(".")
    is_room = FILES.get(".".join(parts[:2])) and FILES[".".join(parts[:2])].stem == "__init__"
    return parts[1] if len(parts) > 1 and is_room else ""


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


def modules_of(package):
    return sorted(name for name in FILES if name.startswith(package))


def test_jobs_reaches_neither_torch_nor_the_trainer():
    arrows = {(module, name) for module in modules_of("jobs") for name in reached(module)}
    assert {
        arrow for arrow in arrows if arrow[1].partition(".")[0] in ("torch", "trainer")
    } == set()


def test_the_core_imports_nothing_of_a_room():
    arrows = [
        (module, name)
        for module in FILES
        for name in imports(module, is_typing_included=True)
        if deletable(name) not in {"", deletable(module), *ROOM_IMPORTS.get(deletable(module), ())}
    ]
    assert arrows == []


def test_each_room_has_a_line_and_a_folder():
    folders = {
        path.name
        for package in OWN
        for path in (REPOSITORY / package / "rooms").iterdir()
        if path.is_dir() and path.name != "__pycache__"
    }
    assert folders == {*ROOMS}


def test_each_hook_of_a_room_has_the_types_of_the_core():
    for name, of_room in ROOMS.items():
        for package, hooks in (("jobs", of_room.hooks), ("trainer", of_room.trainer_hooks)):
            for hook in hooks:
                found = function_of(f"{package}.rooms.{name}.hooks", hook)
                wanted = function_of(
                    f"trainer.{hook}" if hook == "parts" else f"{package}.hooks", hook
                )
                assert ast.unparse(found.args) == ast.unparse(wanted.args), (name, hook)


def function_of(module, name):
    return next(x for x in tree(module).body if isinstance(x, ast.FunctionDef) and x.name == name)


def test_the_hooks_fit_on_a_few_pages():
    hooks = [x for x in tree("jobs.hooks").body if isinstance(x, ast.FunctionDef)]
    assert len([x for x in hooks if not x.name.startswith("_")]) <= 11
    assert len(FILES["jobs.hooks"].read_text(encoding="utf-8").splitlines()) <= 150


def test_an_import_goes_down_the_list_of_rooms():
    assert [found for module in FILES for found in imports_upwards(module)] == []


def imports_upwards(module):
    """(module, imported module) for each import that the list of rooms does not allow."""
    package = module.partition(".")[0]
    ground = CONTRACT if package == "jobs" else BASE
    if module in {"trainer.contract", *HOOKS, *SIGNALS_FIRST} or deletable(module):
        return
    allowed = MAY_IMPORT[package][room(module)] | {room(module)}
    for name in own(imports(module, is_typing_included=True)) - ground - HOOKS - {*OWN}:
        is_down = module not in ground and room(name) in allowed
        if not is_down or name.partition(".")[0] != package:
            yield module, name


def test_no_module_imports_itself_through_others():
    graph = {name: {each for each in imports(name, True) if each in FILES} for name in FILES}
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the modules


def test_the_trainer_imports_of_jobs_only_the_contract_by_one_module():
    imported = {
        module: {name for name in own(imports(module, True)) if name.startswith("jobs")}
        for module in modules_of("trainer")
    }
    of_core = [module for module in imported if imported[module] and not deletable(module)]
    assert {*of_core} == {"trainer.contract", "trainer.stop"}
    first = present(SIGNALS_FIRST)
    assert all(imported[module] == {"jobs.stop_signals"} for module in first)
    others = {
        (module, name)
        for module, names in imported.items()
        for name in names - CONTRACT - {"jobs"}
        if not deletable(module) or deletable(name) != deletable(module)
    }
    assert others == set()


def test_what_runs_on_any_node_needs_the_standard_library_only():
    imported = {module: foreign(reached(module)) for module in present(STANDARD_LIBRARY_ONLY)}
    assert {module: names for module, names in imported.items() if names} == {}


FOLDERS = [name for name, path in FILES.items() if path.stem == "__init__" and "." in name]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_room_has_a_line_for_each_of_its_files(name):
    folder = FILES[name].parent
    modules = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    described = re.findall(r"^- (\w+): .+$", ast.get_docstring(tree(name)) or "", re.M)
    assert sorted(described) == modules


@pytest.mark.parametrize("package", ["jobs", "trainer"])
def test_a_package_names_each_module_at_its_top(package):
    named = re.findall(r"^\w+: ((?:\w+,\s+)*\w+)$", ast.get_docstring(tree(package)) or "", re.M)
    described = sorted(name for names in named for name in re.split(r",\s+", names))
    modules = sorted(path.stem for path in FILES[package].parent.glob("*.py"))
    assert described == [name for name in modules if name not in ("__init__", "__main__")]


# Between reading and deciding: pure functions of values, without the run directory or a path.
PURE = ("jobs.runs.interpret", "jobs.attempt.decision")


@pytest.mark.parametrize("module", PURE)
def test_what_decides_reads_nothing(module):
    assert not {"os", "pathlib", "jobs.rundir", "jobs.runs"} & reads(module)
    types = [
        ast.unparse(argument.annotation)
        for node in nodes(module)
        if isinstance(node, ast.FunctionDef)
        for argument in (*node.args.args, *node.args.kwonlyargs)
        if argument.annotation is not None
    ]
    assert types and not [name for name in types if "RunDir" in name or "Path" in name]


def reads(module):
    names = set(imports(module, is_typing_included=True))
    return names | {name.rpartition(".")[0] for name in names}


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


# Which modules of the core start a process, and which one. Others call these.
STARTS_PROCESSES = {
    "jobs.slurm.client": "Slurm's commands",
    "jobs.node.agent": "torchrun",
    "jobs.node.rank": "becomes the rank",
    "jobs.commands.local": "the agents of a run without Slurm",
    # Exceptions of the rule that jobs.slurm, jobs.node and jobs.commands.local start processes:
    "jobs.attempt.attempts": "srun, which starts the agents",
    "jobs.attempt.srun_step": "asks env(1) for --block-signal",
    "jobs.runs.git": "git, which lists the files to freeze",
    "jobs.commands.make_words": "becomes torchrun, for make train",
    "trainer.__main__": "becomes itself, with PYTHONHASHSEED",
    "trainer.process.run_handle": "python -m jobs, because only the contract of jobs/ is imported",
}
# jobs.runs.state judges whether a run lives. The others ask about one job or process.
ASK_ABOUT_JOBS = {
    "jobs.runs.state": "the state of runs",
    "jobs.runs.run_lock": "whether the owner of a claim is dead, so that another may take it",
    "jobs.commands.resume": "until a job that has ended its run is gone",
    "jobs.commands.submit_claim": "whether the command that holds the claim is dead",
    "jobs.commands.cancel": "whether the process that it stops is still that of the run",
}
# jobs.rundir.replacing is the one way to write a file as a whole; these rename for another reason.
RENAME = {
    "jobs.rundir": "replacing()",
    "jobs.shared_files": "a link that always fails makes the kernel look up the name",
    "jobs.runs.run_lock": "a hard link fails if the file exists; a rename would replace it",
    "jobs.runs.code_snapshot": "directories",
    "jobs.runs.revision": "directories",
    "jobs.checkpoint.names": "temporary names that a later attempt removes",
    "trainer.checkpoint.commit": "directories",
    "trainer.checkpoint.recovery": "a directory, to quarantine it",
}


@pytest.mark.parametrize(
    ("among", "names", "listed"),
    [
        (
            CORE,
            r"(.+\.)?(subprocess|multiprocessing|pty)(\..+)?"
            r"|os\.(exec[lv].*|spawn.*|posix_spawn.*|fork.*|system|popen)",
            STARTS_PROCESSES,
        ),
        (CORE, r"job_list\.(life_of|ask|queue)|run_lock\.life_of", ASK_ABOUT_JOBS),
        (CORE, r"os\.(replace|renames?|link)|shutil\.move|.+\.(rename|hardlink_to)", RENAME),
        (FILES, r"(.+\.)?rundir\.(read|write|append)_jsonl?", {"jobs.records"}),
        (FILES, r"submitit(\..+)?", {"jobs.slurm.executor"}),
    ],
    ids=["start processes", "ask about jobs", "rename files", "read run files", "import submitit"],
)
def test_only_listed_modules(among, names, listed):
    pattern = re.compile(names)
    found = {module for module in among if any(map(pattern.fullmatch, used_names(module)))}
    assert found == {*listed}


SLURM_COMMANDS = {
    *("sbatch", "srun", "salloc", "sattach", "scancel", "scontrol", "sinfo", "squeue", "sacct"),
    *("sacctmgr", "sbcast", "sdiag", "sprio", "sreport", "sshare", "sstat", "strigger"),
}


def test_only_jobs_slurm_runs_slurms_commands():
    words = {
        (module, node.value)
        for module in FILES
        if not module.startswith("jobs.slurm")
        for node in nodes(module)
        if isinstance(node, ast.Constant) and node.value in SLURM_COMMANDS
    }
    assert not words, "a command's name as a value: give a module of jobs.slurm a function for it"


# Without -P `python -m` imports a json.py of the working directory, also one of another user.
STARTS_MODULES = {
    "jobs.installation": "python_m, with -P, for all that does not stand here",
    "jobs.node.torchrun": "torchrun and ranks, in the frozen code",
    "jobs.commands.make_words": "make train, in a clone of the kit",
    "jobs.commands.packages": "the line that a user may copy",
    "jobs.rooms.check.hooks": "builds the parts of a run as a rank does, in the frozen code",
    "jobs.rooms.rehearse.probe.launcher": "a user's module, as Python runs it",
    "jobs.rooms.rehearse.subjects": "a user's command, in its copy; the kit as this process",
    "jobs.rooms.scripts.command": "a user's module, in the frozen code",
}


def test_only_listed_modules_start_another_by_its_name():
    found = {
        module
        for module in FILES
        for node in nodes(module)
        if isinstance(node, ast.Constant) and node.value == "-m"
    }
    assert found == present(STARTS_MODULES)


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
