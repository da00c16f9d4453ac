"""The code and the working directory of a user's own script or module (launch.script, .module).

The ranks start in RUN_DIR/work, which each run has for itself. It begins with the input files of
the repository, or of the folder of a script outside of it: the script finds them by the relative
paths that it uses there, and what it writes changes neither the frozen code nor that folder.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from .. import installation
from ..console import print_line, quantity
from ..errors import UserError
from ..rundir import RunDir
from ..spec import Launch, Spec
from . import code_snapshot, script_files

# A larger file is not copied into each run: there the working directory has a link to the frozen,
# read-only file.
MAX_COPIED_BYTES = 2**20
# The folder of a script outside of the repository may be a home directory.
MAX_OUTSIDE_FILES = 2000
MAX_OUTSIDE_MIB = 64
MAX_SHOWN = 5  # names in a line for the user
# Options that name what a script reads.
_KEY = re.compile(r"[+~]*[\w.]+")
_READ = re.compile(r"data|input|vocab|token|config|cache|pretrain", re.I)


def normalise_script(spec: Spec, repository: Path) -> Spec:
    """Return the spec with launch.script relative to the repository, or absolute if outside it."""
    if spec.launch.script is None:
        return spec
    top = repository.resolve()
    # Links are resolved, as Python does for sys.path[0]: the code is where the link leads to.
    path = (top / os.path.expanduser(spec.launch.script)).resolve()
    script = str(path.relative_to(top) if path.is_relative_to(top) else path)
    return replace(spec, launch=replace(spec.launch, script=script))


def check_frozen(launch: Launch, run_dir: RunDir) -> None:
    """Raises UserError for a launch.script that the frozen code of the run does not have.

    Or that is written for a shell: each rank would end with an error of Python's grammar.
    """
    if launch.script is None:
        return
    script = Path(launch.script)
    frozen = run_dir.script_code / script.name if script.is_absolute() else run_dir.code / script
    if not frozen.is_file():
        raise UserError(
            f"launch.script: {launch.script} is not in the frozen code\n"
            "  hint: git ignores it (git add -f), or it is newer than this run: submit a new run"
        )
    with frozen.open("rb") as file:
        first = file.readline(200)
    if frozen.suffix in (".sh", ".bash") or re.match(rb"#!.*\b(?:ba|da|z|k)?sh\b", first):
        path = script.name if script.is_absolute() else script  # in the working directory
        raise UserError(
            f"launch.script: {launch.script} is a shell script, and Python runs launch.script\n"
            "  hint: name a Python file that starts it, such as one with\n"
            "    import subprocess, sys; "
            f"sys.exit(subprocess.call(['bash', '{path}', *sys.argv[1:]]))"
        )


def leftover_files(launch: Launch, folder: Path) -> list[str]:
    """Return the files of the repository or a script's folder that an earlier run may have left.

    They are untracked, look like the output of a training, and launch.inputs does not name them.
    """
    if launch.is_trainer:
        return []
    listed = code_snapshot.listing(folder)
    named = [os.path.normpath(each) for each in launch.inputs]
    own = {launch.script, Path(str(launch.script)).name}
    return [
        name
        for name in script_files.leftover_files(folder, listed.untracked)
        if name not in own and not any(f"{name}/".startswith(f"{each}/") for each in named)
    ]


def format_left_over(names: Sequence[str]) -> list[str]:
    """Return lines for the user about files that are left out of the frozen code."""
    if not names:
        return []
    places = sorted({name if "/" not in name else str(Path(name).parent) for name in names})
    shown = _some(places)
    key = installation.override(f"launch.inputs=[{', '.join(places[:MAX_SHOWN])}]")
    return [
        f"launch.script: {quantity(len(names), 'file')} that an earlier run may have left is no "
        f"input, because git is not known to track it: {shown}; {key} makes it one"
    ]


def freeze_outside(launch: Launch, runs_root: Path, mode: int) -> tuple[Path, str]:
    """Copy the folder of a script, or the script alone; returns the copy, and a line for the user.

    The script alone where the folder is too large, or has files that cannot be read.
    """
    script = Path(str(launch.script))
    folder = script.parent
    try:
        files = code_snapshot.listing(folder)
        # Hidden files of a home directory hold secrets.
        hidden = filter(_is_hidden, files.tracked | files.untracked)
        left_out = {*leftover_files(launch, folder), *hidden}
        listed = code_snapshot.source_files(folder, MAX_OUTSIDE_FILES + 1, left_out)
        paths = list(listed)
        size = sum(listed[each] for each in paths)
        if len(listed) <= MAX_OUTSIDE_FILES and size <= MAX_OUTSIDE_MIB * 2**20:
            copy = code_snapshot.take(folder, runs_root, sorted({*paths, script}), mode)
            what = f"{quantity(len(paths), 'file')}, none that is hidden or that git ignores"
            return copy, f"launch.script: its folder {folder} is frozen, too: {what}"
        why = f"more than {MAX_OUTSIDE_FILES} files or {MAX_OUTSIDE_MIB} MiB"
    except OSError as error:
        why = f"{error.filename}: {error.strerror}"
    copy = code_snapshot.take(folder, runs_root, [script], mode)
    return copy, f"launch.script: {script} alone is frozen, not its folder ({why})"


def unfrozen_module(launch: Launch, repository: Path, folders: Iterable[str] = ()) -> str | None:
    """Return a line about a launch.module that is not in the repository; None for one that is."""
    if launch.module is None:
        return None
    name = launch.module.replace(".", "/")
    paths = [repository / folder / name for folder in (".", *folders)]
    if any(path.is_dir() or path.with_suffix(".py").is_file() for path in paths):
        return None
    return f"launch.module: {launch.module} is not in {repository}: its code is not frozen"


def fill_work(run_dir: RunDir, launch: Launch, repository: Path) -> list[str]:
    """Put the script's input files into the working directory; returns lines for the user.

    They come from the repository; for a script outside of it, from the script's folder. Inputs are
    the frozen files but Python code. A file at the top counts if git tracks it: others are often
    what a script left there when it was started by hand. What launch.args and launch.inputs name is
    an input, too. Of that only launch.inputs makes one of what is not frozen: a link to it. Nothing
    that the working directory has already is replaced.
    """
    run_dir.work.mkdir(exist_ok=True)
    home = script_home(launch, repository)
    code = run_dir.code if home == repository else run_dir.script_code
    names = code_snapshot.frozen_names(code)
    listed = code_snapshot.listing(home)
    tracked = listed.tracked if listed.is_git else names
    named, lines = named_inputs(launch, home)
    inputs = [each for each in names if _is_input(each, tracked, named, code)]
    for name in inputs:
        _place(run_dir.work, name, code, home)
    folders = {str(parent) for name in inputs for parent in Path(name).parents}
    for key, name in named.items():
        unfrozen = list(_unfrozen(home, key, set(names), folders))
        if unfrozen and name == "launch.args":
            lines.append(
                f"{name}: {key} is no input, or not all of it: git does not track it, so an "
                "earlier run may have left it; "
                f"{installation.override(f'launch.inputs=[{key}]')} gives the script {home / key}"
            )
            continue
        for each in unfrozen:
            _link(run_dir.work / each, str(home / each))
        if unfrozen:
            lines.append(
                f"{name}: {key} is not frozen, the script's working directory has a link to "
                f"{home / key}"
            )
    return lines


def script_home(launch: Launch, repository: Path) -> Path:
    """Return the folder in which the relative paths of a script begin when a person starts it."""
    is_outside = launch.script is not None and os.path.isabs(launch.script)
    return Path(str(launch.script)).parent if is_outside else repository


def named_inputs(launch: Launch, home: Path) -> tuple[dict[str, str], list[str]]:
    """Return the paths below `home` in launch.inputs and launch.args, with the key; lines to print.

    A word of launch.args that begins with ./ is none: it names an output of the script.
    Raises: UserError for a path of launch.inputs that does not exist.
    """
    named, lines = {}, []
    for word in launch.inputs:
        if not (home / word).exists():
            raise UserError(
                f"launch.inputs: {home / word} does not exist\n"
                f"  hint: give a path relative to {home}"
            )
        named[os.path.normpath(word)] = "launch.inputs"
    for option, word in _words(launch.args):
        path = os.path.normpath(word)
        if (inner := _live_file(word, home)) is not None:
            lines.append(
                f"launch.args: {word} is not the frozen file, and an edit during the run changes "
                f"it; write {inner}"
            )
            continue
        if os.path.isabs(word) and _may_be_output(option, word, launch.outputs):
            lines.append(
                f"launch.args: {word} leads out of the run directory; if the script saves its "
                "checkpoints there, "
                f"{installation.override(f'launch.outputs=[{word}]')} makes them count as progress"
            )
        is_output = not word or word.startswith("./") or path == "."
        if is_output or os.path.isabs(word) or not os.path.lexists(home / word):
            continue
        if path.startswith(".."):
            full = os.path.normpath(home / word)
            lines.append(
                f"launch.args: {word} begins in the script's working directory, RUN_DIR/work; "
                f"if you mean {full}, write that"
            )
        else:
            named.setdefault(path, "launch.args")
    return named, lines


def _live_file(word: str, home: Path) -> str | None:
    """Return the relative path of an absolute one to a file of `home`; None for another."""
    path, top = Path(word), home.resolve()
    if not path.is_absolute() or not path.is_file():
        return None
    own = path.resolve()
    return str(own.relative_to(top)) if own.is_relative_to(top) else None


def _words(args: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (option, value) of each argument: --option=value, --option value, key=value, value."""
    before = ""
    for argument in args:
        option, sign, value = argument.partition("=")
        if sign and (argument.startswith("-") or _KEY.fullmatch(option)):
            yield option, value
        elif not argument.startswith("-"):
            yield before, argument
        before = argument if argument.startswith("-") else ""


def _may_be_output(option: str, word: str, outputs: Collection[str]) -> bool:
    """Return whether an absolute path may be a folder that the script writes to."""
    if _READ.search(option) or word.startswith(("/dev/", "/proc/")):
        return False
    if any(f"{word}/".startswith(f"{each.rstrip('/')}/") for each in outputs):
        return False
    path = Path(word)
    folder = next((each for each in (path, *path.parents) if each.exists()), Path("/"))
    return folder.is_dir() and os.access(folder, os.W_OK)


def _is_input(name: str, tracked: Collection[str], named: Collection[str], code: Path) -> bool:
    # A folder with nothing but a .gitkeep counts as not frozen.
    if name in named or _is_hidden(name):
        return name in named
    if any(name.startswith(f"{each}/") for each in named):
        return True
    if name.endswith(".py"):
        return False
    return "/" in name or name in tracked or (code / name).is_symlink()


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in Path(name).parts)


def _place(work: Path, name: str, code: Path, home: Path) -> None:
    """Copy a frozen file into the working directory, or link it there if it is large."""
    source, target = code / name, work / name
    if source.is_symlink():
        full = (home / name).resolve()
        is_inside = full.is_relative_to(home.resolve())
        _link(target, os.readlink(source) if is_inside else str(full))
    elif source.stat().st_size > MAX_COPIED_BYTES:
        _link(target, os.path.relpath(source, target.parent))
    elif not os.path.lexists(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)  # with its time: it is older than what the run saves
        target.chmod(target.stat().st_mode | 0o200)


def _link(target: Path, text: str) -> None:
    if not os.path.lexists(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(text)


def _unfrozen(
    home: Path, name: str, frozen: Collection[str], folders: Collection[str]
) -> Iterator[str]:
    """Yield the files and whole folders at or below a path that the working directory lacks."""
    path = home / name
    if name in frozen or path.name in code_snapshot.SKIPPED_FOLDERS:
        return
    if path.is_dir() and name in folders:
        for child in sorted(os.listdir(path)):
            yield from _unfrozen(home, f"{name}/{child}", frozen, folders)
    else:
        yield name


# Asks an interpreter, which imports nothing for it, where it finds modules: stdin has their names.
# Whatever made a module editable, Python's own search finds it: a .pth file, a finder, a link.
# Of a namespace package the modules in it are looked up, because its folders may be many.
_FIND = """
import ast, importlib.metadata, json, os, sys
names = ast.literal_eval(sys.stdin.read())
sys.path[:] = [os.path.abspath(entry) for entry in sys.path if entry]
def find(name, path):
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, path)
        except Exception:
            continue
        if spec is not None:
            return spec
def place(name):
    parts, path = name.split("."), None
    for count in range(1, len(parts) + 1):
        spec = find(".".join(parts[:count]), path)
        if spec is None:
            return None
        if spec.has_location and spec.origin:
            return os.path.abspath(spec.origin)
        path = spec.submodule_search_locations
        if path is None:
            return None
def edited():
    for each in importlib.metadata.distributions():
        try:
            known = json.loads(each.read_text("direct_url.json") or "{}")
            if known.get("dir_info", {}).get("editable"):
                yield each.metadata["Name"], known["url"]
        except Exception:
            continue
found = {name: place(name) for name in names}
prefixes = [sys.prefix, sys.base_prefix]
print()
print([prefixes, sys.path, list(edited()), found])
"""


@dataclass(frozen=True)
class Environment:
    """Where an interpreter finds modules; empty where it does not start.

    places: by the name of a module the file of its outermost package that has one. edited: by its
    folder each package that `pip install -e` installed. Source: PEP 610 and 660, direct_url.json.
    """

    prefixes: tuple[Path, ...] = ()
    search_path: tuple[str, ...] = ()
    edited: Mapping[Path, str] = field(default_factory=dict)
    places: Mapping[str, Path] = field(default_factory=dict)
    python_path: str = ""

    def leads_to_live(self, place: Path) -> str | None:
        """Return what leads to a file that people edit; None for one that is installed.

        Of PYTHONPATH only what _is_edited() counts: all else are a site's modules.
        """
        path = place.resolve()
        tops = [top for top in (*self.prefixes, *self.edited) if path.is_relative_to(top)]
        top = max(tops, key=lambda each: len(each.parts), default=None)
        if top in self.edited:
            return f"pip install -e {top}"
        if top is not None or _is_installed(path):
            return None
        entries = [each for each in self.search_path if place.is_relative_to(each)]
        if any(each in self.python_path.split(os.pathsep) for each in entries):
            return "PYTHONPATH" if _is_edited(path.parent) else None
        # An installer may keep the files themselves in a cache, and links to them here.
        is_cached = _is_installed(place) and installation.top_of(path.parent) is None
        return None if is_cached else "a .pth file or a link in site-packages"

    def may_change(self, place: Path) -> bool:
        """Return whether somebody may edit a file that PYTHONPATH leads to.

        The file counts as installed. It is in a git repository that this user cannot write: the
        site's, or a colleague's. Or it is in a folder of this user that no installer has filled.
        """
        path = place.resolve()
        if _is_installed(path) or any(map(path.is_relative_to, self.prefixes)):
            return False
        entries = (Path(each) for each in self.search_path if place.is_relative_to(each))
        has_installer = any(any(each.glob("*.dist-info")) for each in entries)
        is_own = path.exists() and path.stat().st_uid == os.getuid()
        return installation.top_of(path.parent) is not None or (is_own and not has_installer)


def environment_of(
    python: str, names: Iterable[str], entries: Sequence[str], folder: Path, inherited: str
) -> Environment:
    """Return where an interpreter finds these modules.

    entries: first on its PYTHONPATH; behind them `inherited`, of the spec or of this process.
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [*entries, inherited]))}
    from . import check  # a submit of the trainer does without

    answer = check.ask_python(python, _FIND, str([*names]), env, folder)
    if answer is None:
        return Environment()
    prefixes, search_path, edited, places = ast.literal_eval(answer)
    return Environment(
        tuple(Path(each).resolve() for each in prefixes),
        tuple(search_path),
        {Path(url2pathname(urlsplit(url).path)).resolve(): name for name, url in edited},
        {name: Path(place) for name, place in places.items() if place},
        inherited,
    )


def _is_installed(path: Path) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(path.parts)


def _is_edited(folder: Path) -> bool:
    """Return whether a folder is in a git repository that the user may write: no site's clone."""
    return installation.top_of(folder) is not None and os.access(folder, os.W_OK)


def freeze_live(
    spec: Spec, repository: Path, code: Path, script_code: Path | None
) -> tuple[str, ...]:
    """Return the folders of the repository whose frozen copies go onto the search path.

    In them the interpreter finds modules of the repository. code, script_code: the frozen copies of
    the repository, and of a script outside of it. Raises: UserError for a module that the script
    imports from a place where people edit it, and that is not frozen.
    """
    if spec.launch.is_trainer:
        return ()
    top, launch, python = repository.resolve(), spec.launch, spec.interpreter
    own = _modules(code_snapshot.frozen_names(code))
    search_path = launch.env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    here = environment_of(python, own, (), top, search_path)
    folders, live = dict[str, None](), dict[str, str]()
    for name, path in ((name, here.places[name].resolve()) for name in own if name in here.places):
        is_frozen = path.is_relative_to(top) and (code / path.relative_to(top)).exists()
        if is_frozen and here.leads_to_live(here.places[name]) is not None:
            live[name] = "the code"
            is_package = path.stem == "__init__"
            folder = path.parents[name.count(".") + is_package]
            folders[str(folder.relative_to(top))] = None
            if folder != top:  # there Python finds the frozen one beside the script anyway
                _check_whole(path.parent if is_package else path, top, code)
    entries = [code / each for each in folders]
    home = script_code or code / Path(launch.script or ".").parent
    start = Path(launch.script).stem if launch.script is not None else str(launch.module)
    wanted = _imports([home, *entries], start, code.resolve().parent)
    before = [*map(str, [home, *entries])]
    there = environment_of(python, {*live, *wanted}, before, top, search_path)
    _check_imports(there, live | wanted, [home, code], launch)
    _name_others(there, top)
    return tuple(folders)


def _check_imports(
    there: Environment, importers: Mapping[str, str], copies: Iterable[Path], launch: Launch
) -> None:
    """Raises UserError for an imported module that is found where people edit it.

    Names those that others may edit.
    """
    changing = dict[Path, str]()
    frozen = [each.resolve() for each in copies]
    key = "launch.module" if launch.script is None else "launch.script"
    for name, importer in importers.items():
        place = there.places.get(name)
        if place is None or any(map(place.resolve().is_relative_to, frozen)):
            continue
        is_kits = name.partition(".")[0] == installation.NAME
        if not is_kits and there.may_change(place):
            changing[place] = name
        if (by := there.leads_to_live(place)) is not None and not is_kits:
            raise UserError(
                f"{key}: {importer} imports {name.partition('.')[0]} from {place}, which is not "
                f"frozen: {by} leads there, and an edit during the run would change it\n  hint: "
                "install it without -e (pip install FOLDER), or have it in this repository: a "
                "submodule is frozen, too"
            )
    if changing:
        named = _some([f"{name} ({place})" for place, name in changing.items()])
        print_line(
            f"not frozen, because PYTHONPATH leads there, where somebody may edit it: {named}"
        )


def _name_others(there: Environment, top: Path) -> None:
    """Name the editable packages that the script may import by a name made at run time."""
    others = [
        f"{name} ({folder})"
        for folder, name in there.edited.items()
        if not folder.is_relative_to(top) and folder != installation.ROOT
    ]
    if others:
        named = _some(others)
        print_line(
            f"not frozen, because pip install -e leads there and no import of it was found: {named}"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_SHOWN]) + (", ..." if len(names) > MAX_SHOWN else "")


def _modules(names: Iterable[str]) -> list[str]:
    """Return each name by which a file may be imported, up to its outermost package.

    names: of files, relative to a repository, whose packages may lie in any of its folders.
    """
    known = {each for each in names if each.endswith(".py")}
    modules: dict[str, None] = {}
    for name in sorted(known):
        parts = Path(name).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        for first in range(len(parts)):
            end = first + 1
            while end < len(parts) and "/".join([*parts[:end], "__init__.py"]) not in known:
                end += 1
            if all(map(str.isidentifier, parts[first:end])):
                modules[".".join(parts[first:end])] = None
    return [*modules]


def _check_whole(package: Path, top: Path, code: Path) -> None:
    """Raises UserError for a module of an editable package that git ignores: its copy lacks it."""
    for path in sorted(package.rglob("*")) if package.is_dir() else []:
        is_module = path.suffix in (".py", ".so", ".pyd") and "__pycache__" not in path.parts
        if is_module and not os.path.lexists(code / path.relative_to(top)):
            raise UserError(
                f"{path} is not frozen, because git ignores it, and {package.name} imports it\n"
                "  hint: git add -f it, or install the package without -e (pip install FOLDER)"
            )


def _imports(roots: Sequence[Path], start: str, copies: Path) -> dict[str, str]:
    """Return by its full name each imported module that `roots` lack, and the file that imports it.

    copies: the folder of all frozen copies. Raises: UserError for code that puts a folder where
    people edit code onto sys.path, or that lies behind a link.
    """
    lacking: dict[str, str] = {}
    waiting, seen, read = [("the spec", start)], set[str](), set[Path]()
    while waiting:
        importer, name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        parts = name.split(".")
        files = {
            file: parts[: count if file.name != f"{base.name}.py" else count - 1]
            for root in roots
            for count in range(1, len(parts) + 1)
            for base in [root.joinpath(*parts[:count])]
            for file in (base / "__init__.py", base / "__main__.py", base.with_suffix(".py"))
            if file.is_file()
        }
        if not files:
            lacking[name] = importer
        for file, package in files.items():
            if file not in read:
                _check_linked(file, copies, importer)
                read.add(file)
                waiting += [(file.name, each) for each in _imports_of(file, package)]
    return lacking


def _check_linked(file: Path, copies: Path, importer: str) -> None:
    """Raises UserError for a module behind a link to a folder where people edit code."""
    place = file.resolve()
    if place.is_relative_to(copies) or _is_installed(place):
        return
    if _is_edited(place.parent) or place.stat().st_uid == os.getuid():
        raise UserError(
            f"launch.script: {importer} imports {place}, which is not frozen: a link to its folder "
            "leads there, and an edit during the run would change it\n  hint: have the folder in "
            "this repository, or install it (pip install FOLDER)"
        )


def _imports_of(file: Path, package: Sequence[str]) -> Iterator[str]:
    """Yield the full names that a file imports; none of one that Python cannot read."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return
    for node in ast.walk(tree):
        _check_search_path(node, file)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            base += node.module.split(".") if node.module else []
            yield from (".".join([*base, alias.name]) for alias in node.names if alias.name != "*")
            if base:
                yield ".".join(base)


def _check_search_path(node: ast.AST, file: Path) -> None:
    """Raises UserError for a statement by which Python would search a folder where people edit.

    Names a folder of a git repository that this user cannot write.
    """
    if isinstance(node, ast.Call):
        is_edit = ast.unparse(node.func).startswith(("sys.path.", "site.addsitedir"))
    elif isinstance(node, (ast.Assign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        is_edit = any(ast.unparse(each).startswith("sys.path") for each in targets)
    else:
        return
    for text in _whole_texts(node) if is_edit else ():
        folder = Path(os.path.expanduser(text))
        is_own = folder.is_absolute() and folder.is_dir() and not _is_installed(folder)
        if is_own and (_is_edited(folder) or folder.stat().st_uid == os.getuid()):
            raise UserError(
                f"{file.name}:{node.lineno}: {folder} on sys.path is not frozen, and an edit there "
                "during the run would change it\n  hint: have it in this repository, and build its "
                "path from __file__; or install it (pip install FOLDER)"
            )
        if folder.is_absolute() and not _is_installed(folder) and installation.top_of(folder):
            print_line(
                f"{file.name}:{node.lineno}: {folder} on sys.path is not frozen; an edit there "
                "would change the run"
            )


def _whole_texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts in an expression that are no parts of a longer one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif not isinstance(node, (ast.BinOp, ast.JoinedStr)):
        for each in ast.iter_child_nodes(node):
            yield from _whole_texts(each)
