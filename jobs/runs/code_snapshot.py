"""The frozen code: a read-only copy of the repository, shared by runs of equal code."""

import contextlib
import functools
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from ..base import installation
from ..base.console import print_line
from ..base.errors import RecordError, UserError
from ..base.files import ask_again, is_dir, read_bytes
from . import ownership
from .git import ask_git

MAX_MIB = 64
DEFAULT_MODE = 0o700  # of a run directory
LIST = ".frozen-files"  # in each copy, the names of its files
NAME = re.compile(r"[0-9a-f]{64}(-[0-9]+){0,3}")  # of a copy: digest, user id, week, other mode

# Of files that may be secrets, and of folders with some; compared in lower case.
SECRETS = (
    *(".env*", "*.pem", "*.key", "id_*", ".netrc", "*_history", "*token*", "*secret*"),
    *("*credential*", "*.jwt", "*kubeconfig*", ".pypirc"),
)
SECRET_FOLDERS = (".ssh", ".aws", ".kube", ".docker", ".gnupg")
NO_TOKENS = re.compile("tokeni[sz]|(special|added)_tokens")  # in names of a tokenizer's files


def refuse_home(folder: Path) -> None:
    """Raises UserError for a folder in which other things than code are, too."""
    if folder in (Path.home(), Path("/"), Path(tempfile.gettempdir())):
        raise UserError(f"{folder} is no repository\n  hint: move the code to a folder of its own")


def repository() -> Path:
    """Return the repository whose code a new run takes.

    The clone that this kit is, in its folders; elsewhere the working directory's git repository. If
    that is in none, the clone, or for the command `kit` the working directory itself.

    Raises: UserError in a home directory without git, where other things than code are, too.
    """
    here, root = Path.cwd(), installation.ROOT
    top = installation.top_of(here)
    is_inner = top is not None and top != root and top.is_relative_to(root)
    if installation.IS_CLONE and here.is_relative_to(root) and not is_inner:
        return root
    if top is None and not installation.IS_BY_MAKE:
        refuse_home(here)
    return top or (root if installation.IS_BY_MAKE else here)


def take(
    repository: Path, runs_root: Path, mode: int = DEFAULT_MODE, inputs: Collection[str] = ()
) -> Path:
    """Copy a repository to `<runs_root>/.code/<sha>-<uid>-<week>`, unless it is there; return that.

    mode: dir_mode of the run; runs share a copy only if it is the same. inputs: names of files and
    folders that are not frozen. Raises: OSError; UserError for what cannot be frozen.
    """
    return _copy_of(source_files(repository, runs_root, inputs), runs_root, mode)


def take_kit(runs_root: Path, mode: int = DEFAULT_MODE) -> Path:
    """Return a copy of this kit, in which the package slurm_job_kit has all parts.

    The ranks have it on their search path, so a script finds kit_stop there. Raises: OSError.
    """
    name, parts = installation.NAME, installation.PARTS
    folders = {name: installation.PACKAGE} | {f"{name}/{x}": installation.HOME / x for x in parts}
    # A link among them leads to a file that the copy does not have.
    files = {f"{to}/{x}": (top / x).resolve() for to, top in folders.items() for x in walk(top)}
    files[installation.KIT_STOP.name] = installation.KIT_STOP
    if installation.IS_BY_MAKE:  # the jobs name the user's commands
        files["Makefile"] = installation.HOME / "Makefile"
    elif installation.TO_MAKE:
        files["kit.mk"] = installation.PACKAGE / "kit.mk"
    return _copy_of(files, runs_root, mode)


def source_files(
    repository: Path, runs_root: Path | None = None, inputs: Collection[str] = ()
) -> dict[str, Path]:
    """Return the files to freeze by their names: what git tracks or does not ignore.

    Without git, all but hidden files. Not what lies below runs_root or `inputs`, and no untracked
    file that may be a secret.

    Raises: UserError for a repository that git does not read, and for more than MAX_MIB.
    """
    listed = _listed_by_git(repository)
    names = ((name, False) for name in walk(repository, runs_root)) if listed is None else listed
    left_out = [*map(os.path.normpath, inputs)]
    if runs_root is not None and runs_root.is_relative_to(repository):
        left_out.append(str(runs_root.relative_to(repository)))
    if installation.IS_CLONE and repository == installation.ROOT:
        left_out += (*installation.PARTS, installation.NAME)  # a run has a copy of the kit
    files = [each for each in _files(repository, names) if not is_below(each.name, left_out)]
    kept = _without_secrets(files)
    _refuse_large(kept, repository)
    return {each.name: repository / each.name for each in kept}


@dataclass(frozen=True)
class _File:
    name: str  # relative to the repository
    size: int
    is_tracked: bool = False  # by git


def is_below(name: str, folders: Iterable[str]) -> bool:
    """Return whether a relative path is one of `folders`, or in one of them."""
    return any(name == each or name.startswith(f"{each}/") for each in folders)


def _listed_by_git(folder: Path) -> list[tuple[str, bool]] | None:
    """Return names that git does not ignore, and whether it tracks them; None without git.

    Raises: UserError for a repository that git refuses to read.
    """
    try:
        done = ask_git(folder, "ls-files", "-z", "-t", "--cached", "--others", "--exclude-standard")
    except FileNotFoundError:
        return None
    if done.returncode == 0:
        return sorted({(each[2:], each[0] != "?") for each in done.stdout.split("\0") if each})
    if installation.top_of(folder) is None:
        return None
    raise UserError(f"git does not read {folder}, whose code is to be frozen:\n{done.stderr}")


def walk(folder: Path, skipped: Path | None = None) -> Iterator[str]:
    """Yield the names of the files below a folder, but hidden ones and bytecode."""
    for root, folders, names in os.walk(folder):
        here = Path(root)
        folders[:] = [
            name
            for name in folders
            if name[0] != "." and name != "__pycache__" and here / name != skipped
        ]
        links = [name for name in folders if (here / name).is_symlink()]
        yield from (
            str((here / name).relative_to(folder)) for name in [*names, *links] if name[0] != "."
        )


def _files(folder: Path, names: Iterable[tuple[str, bool]]) -> Iterator[_File]:
    """Yield the files and links of the names, also of each repository among them.

    git lists a submodule or an inner repository as one folder. A FIFO is left out: reading it would
    wait. So is what git tracks in a folder that is now a link: it may lead out of the repository.
    """
    resolved = functools.cache(os.path.realpath)
    top = Path(resolved(folder))
    for name, is_tracked in names:
        path = folder / name
        if Path(resolved(path.parent)) != top / Path(name).parent:
            continue
        try:
            status = path.lstat()
        except (FileNotFoundError, NotADirectoryError):  # deleted, but still in git's index
            continue
        if stat.S_ISDIR(status.st_mode) and (path / ".git").exists():
            for each in _files(path, _listed_by_git(path) or ()):
                yield replace(each, name=os.path.join(name, each.name))
        elif (
            stat.S_IFMT(status.st_mode) in (stat.S_IFREG, stat.S_IFLNK)
            and path.parent.name != "__pycache__"
        ):
            yield _File(name, status.st_size, is_tracked)


def _refuse_large(files: list[_File], repository: Path) -> None:
    """Raises UserError for files of more than MAX_MIB together: data, outputs, or packages."""
    if sum(each.size for each in files) <= MAX_MIB * 2**20:
        return
    largest = sorted(files, key=lambda each: -each.size)[:5]
    shown = ", ".join(f"{each.name} ({each.size / 2**20:.1f} MiB)" for each in largest)
    what = f"the code to freeze, {repository}, has more than {MAX_MIB} MiB; the largest: {shown}"
    hint = "name data, outputs and environments in .gitignore (without git: git init first; if git "
    raise UserError(what, f"{hint}tracks them: git rm --cached), a script's data in launch.inputs")


def _without_secrets(files: list[_File]) -> list[_File]:
    """Return the files but untracked ones that may be secrets, which are printed."""
    found = {each.name: secret_in(each.name) for each in files if not each.is_tracked}
    if secrets := sorted({each for each in found.values() if each}):
        print_line(
            f"not copied (may be secrets): {', '.join(secrets)}\n"
            "  hint: git add a file that is no secret (without git: git init first)"
        )
    return [each for each in files if not found.get(each.name)]


def secret_in(name: str) -> str | None:
    """Return what to print of a file that may be a secret; None for another.

    name: relative to the repository.
    """
    *folders, file = Path(name).parts
    for number, folder in enumerate(folders, 1):
        if folder.lower() in SECRET_FOLDERS:
            return f"{os.path.join(*folders[:number])}/"
    text = NO_TOKENS.sub("", file.lower())
    is_code = text.endswith(".py")  # without which others may fail
    return name if not is_code and any(fnmatchcase(text, each) for each in SECRETS) else None


def _copy_of(files: Mapping[str, Path], runs_root: Path, mode: int) -> Path:
    """Return a copy of the files; an equal one of this week is used again, unless it is damaged.

    Its folder then gets a new time: the command clean deletes none that was taken in the last hour.
    """
    target = runs_root / ".code" / _name(digest(files), mode)
    ownership.make_shared(target.parent, mode)
    ask_again(target)
    with contextlib.suppress(FileNotFoundError):  # or the command clean has just renamed it
        if ownership.problem_of(target) is None:
            os.utime(target)
            if damage(target) is None:
                return target
        os.replace(target, tempfile.mkdtemp(prefix=".broken-", dir=target.parent))
    copy = Path(tempfile.mkdtemp(prefix=".copy-", dir=target.parent))
    try:
        _fill(copy, files, mode)
        # A file may have changed since, such as the output of this very command.
        target = target.with_name(_name(digest(files_of(copy)), mode))
        copy.rename(target)
    except OSError:
        delete(copy)
        if not is_dir(target):  # else another submit made the same copy meanwhile
            raise
    return target


def _fill(copy: Path, files: Mapping[str, Path], mode: int) -> None:
    now = time.time()  # of all: a build by time finds no source that is newer than what it made
    for name, path in files.items():
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            target.symlink_to(_link(name, path, files))
        else:
            shutil.copyfile(path, target)
            source = path.stat().st_mode & 0o777
            # Whom the run's dir_mode lets in may read it, and execute it.
            target.chmod((source | mode & (0o555 if source & 0o100 else 0o444)) & ~0o222)
            os.utime(target, (now, now))
    (copy / LIST).write_bytes(b"\0".join(map(os.fsencode, files)))
    (copy / LIST).chmod(0o444)
    for root, _, names in os.walk(copy, topdown=False):
        if any(name.endswith(".py") for name in names):
            os.mkdir(f"{root}/__pycache__", 0o700)  # Python keeps its bytecode there
            ownership.set_mode(Path(root, "__pycache__"), mode)
        ownership.set_mode(Path(root), mode & ~0o222)


def _link(name: str, path: Path, names: Iterable[str]) -> str:
    """Return where the copy of a link leads: in full, unless to one of `names`, of the copies."""
    text, here = os.readlink(path), os.path.dirname(name)
    if not os.path.normpath(os.path.join(here, text)).startswith(("..", "/")):
        return text
    folder, last = os.path.split(path.parent / text)
    top = os.path.realpath(path.parents[name.count("/")])
    target = os.path.relpath(os.path.join(os.path.realpath(folder), last), top)
    if target == "." or any(is_below(each, [target]) for each in names):
        return os.path.relpath(target, here)
    return text if os.path.isabs(text) else os.path.normpath(path.parent / text)


def _name(sha: str, mode: int) -> str:
    # Of each week another one: a scratch purge deletes what is old, also of a new run.
    own = f"{sha}-{os.geteuid()}-{time.strftime('%G%V')}"
    return own if mode == DEFAULT_MODE else f"{own}-{mode:o}"


def digest_in(name: str) -> str:
    """Return the SHA-256 in the name of a copy: what two users run is the same code."""
    return name.partition("-")[0]


def digest(files: Mapping[str, Path]) -> str:
    """Return SHA-256 over the names, kinds and contents of files and links."""
    total = hashlib.sha256()
    for name, path in sorted(files.items()):
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            kind, content = b"link", os.fsencode(_link(name, path, files))
        else:
            kind = b"exec" if mode & stat.S_IXUSR else b"file"
            content = read_bytes(path)
        total.update(b"%s\0%d\0%s\0" % (os.fsencode(name), len(content), kind) + content)
    return total.hexdigest()


def copy(files: Mapping[str, Path], folder: Path) -> None:
    """Copy files into a new folder, in which others can be made. Raises: OSError."""
    folder.mkdir()
    for name, path in files.items():
        (target := folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target, follow_symlinks=False)


def files_of(copy: Path) -> dict[str, Path]:
    """Return the files of a copy by their names. Raises: OSError."""
    listed = filter(None, read_bytes(copy / LIST).split(b"\0"))
    return {name: copy / name for name in map(os.fsdecode, listed)}


def damage(copy: Path) -> str | None:
    """Return how a copy differs from what its name says; None if it does not.

    Its files are read-only, but root writes all the same, and a purge of the disk deletes.
    """
    if _damage(copy) is None:
        return None
    ask_again(copy / LIST)  # another host may have just made it or its files
    with contextlib.suppress(OSError, RecordError):
        for path in files_of(copy).values():
            ask_again(path)
    return _damage(copy)


def _damage(copy: Path) -> str | None:
    try:
        is_same = digest(files_of(copy)) == digest_in(copy.name)
    except FileNotFoundError as error:
        return f"{os.path.realpath(error.filename)} is missing"
    except RecordError as error:  # a FIFO, for which a reader would wait
        return str(error)
    return None if is_same else f"a file of {copy} was changed"


def delete(folder: Path) -> None:
    """Delete a folder, whose folders may be read-only. Raises: OSError."""
    for root, _, _ in os.walk(folder):
        with contextlib.suppress(PermissionError):
            os.chmod(root, 0o700)
    shutil.rmtree(folder)
