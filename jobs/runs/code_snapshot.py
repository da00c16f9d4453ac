"""The frozen code: a read-only copy of the repository, shared by runs of equal code."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Set
from pathlib import Path

from slurm_job_kit.jobs import environment, installation, shared_files
from slurm_job_kit.jobs.errors import UserError
from slurm_job_kit.jobs.rundir import RunDir

MAX_MIB = 256
LIST = ".frozen-files"  # in each copy, the names of its files
SKIPPED_FOLDERS = frozenset({".git", ".venv", "__pycache__", "node_modules"})


class SnapshotError(OSError):
    """The repository cannot be copied; the text says why and what to do."""

    def __init__(self, message: str, place: Path) -> None:
        super().__init__(0, message, str(place))


def take(repository: Path, runs_root: Path, paths: list[Path] | None = None) -> Path:
    """Copy the repository to `<runs_root>/.code/<sha>` unless it is there; returns that folder.

    A copy with changed or missing files (a scratch purge, for example) is replaced. A copy that is
    taken again gets a new time: the command clean deletes none that was taken in the last hour.
    `paths`: the files to copy; by default those of `source_files`.

    Raises: OSError.
    """
    is_whole_repository = paths is None and installation.is_in(repository)
    sizes = source_files(repository) if paths is None else _sizes(paths)
    paths = list(sizes)
    if runs_root.is_relative_to(repository):  # not where the repository itself lies in it
        paths = [path for path in paths if not path.is_relative_to(runs_root)]
    size = sum(sizes[path] for path in paths)
    if size > MAX_MIB * 2**20:
        largest = max(paths, key=sizes.__getitem__)
        raise SnapshotError(
            f"the code to freeze has {size // 2**20} MiB, more than {MAX_MIB}; the largest file is "
            f"{largest.relative_to(repository)}\n  hint: add data and outputs to .gitignore",
            repository,
        )
    room = repository / "jobs/runs/__init__.py"
    if is_whole_repository and room.exists() and room not in paths:
        raise SnapshotError(
            "git ignores the kit's own package jobs/runs\n  hint: write /runs/ instead of runs/ in "
            ".gitignore or git's core.excludesFile",
            room,
        )
    sha = digest(repository, paths)
    target = runs_root / ".code" / sha
    shared_files.ask_again(target)
    with contextlib.suppress(FileNotFoundError):  # or the command clean has just renamed it
        with contextlib.suppress(PermissionError):  # another user's, whose clean looks at links
            os.utime(target)
        if is_whole(target):
            return target
        os.replace(target, tempfile.mkdtemp(prefix=".broken-", dir=target.parent))
    target.parent.mkdir(exist_ok=True)
    copy = Path(tempfile.mkdtemp(prefix=".copy-", dir=target.parent))
    try:
        _copy(repository, paths, copy)
        copy.rename(target)  # not jobs.rundir.replacing: that is for one file
    except OSError:
        shutil.rmtree(copy)
        if not shared_files.is_dir(target):  # else another submit made the same copy meanwhile
            raise
    return target


def take_kit(code: Path, runs_root: Path) -> Path:
    """The frozen code itself if it has the kit, else a copy of this kit as of `take`.

    Raises: OSError.
    """
    if installation.is_in(code):
        return code
    files = _walk(installation.PACKAGE, {"__pycache__"}, are_links_followed=True)
    return take(installation.ROOT, runs_root, sorted(files))


def kit_target(run_dir: RunDir, code: Path, kit: Path) -> str:
    """Where the link `kit` of a run directory leads: to `code` where the code has the kit."""
    return run_dir.code.name if kit == code else os.path.relpath(kit, run_dir.path)


def repository() -> Path:
    """The repository whose code a new run takes.

    The clone that this kit is, in its folders; elsewhere the working directory's git repository. If
    that is in none, the clone, or for the command `kit` the working directory itself.

    Raises: UserError in a home directory without git, where other things than code are, too.
    """
    here, root = Path.cwd(), installation.ROOT
    top = installation.top_of(here)
    is_inner = top is not None and top != root and top.is_relative_to(root)
    if installation.IS_CLONE and here.is_relative_to(root) and not is_inner:
        return root
    if top is None and not installation.IS_BY_MAKE and here in (Path.home(), Path("/")):
        raise UserError(f"{here} is no repository\n  hint: run kit in the folder of your code")
    return top or (root if installation.IS_BY_MAKE else here)


def is_whole(copy: Path) -> bool:
    """Whether a copy still is what its name says; what ranks left in it beside the code is theirs.

    It is their working directory.
    """
    if _is_whole(copy):
        return True
    # Another host may have just made it or its files.
    shared_files.ask_again(copy / LIST)
    with contextlib.suppress(OSError):
        for name in frozen_names(copy):
            shared_files.ask_again(copy / name)
    return _is_whole(copy)


def _is_whole(copy: Path) -> bool:
    try:
        return digest(copy, [f"{copy}/{name}" for name in frozen_names(copy)]) == copy.name
    except FileNotFoundError:
        return False


def frozen_names(copy: Path) -> list[str]:
    """The names of a copy's files, relative to it; all that are there if a purge deleted the list.

    Raises: FileNotFoundError, OSError.
    """
    if copy.is_dir() and not (copy / LIST).exists():
        found = sorted(_walk(copy, skipped={"__pycache__"}))
        return [str(path.relative_to(copy)) for path in found]
    return [os.fsdecode(name) for name in (copy / LIST).read_bytes().split(b"\0") if name]


def source_files(repository: Path, at_most: int | None = None) -> dict[Path, int]:
    """The files to freeze, sorted, and their sizes: tracked, and untracked but not ignored.

    All without git. `at_most`: so many of them, in any order.
    """
    listed = git(repository, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is None:
        paths = _walk(repository, SKIPPED_FOLDERS | {"/runs"})
    else:
        paths = (repository / name for name in set(listed.split("\0")) if name)
    files = (each for each in _files(paths) if not _is_bytecode(each[0]))
    return dict(sorted(itertools.islice(files, at_most), key=lambda each: each[0].parts))


def _sizes(paths: Iterable[Path]) -> dict[Path, int]:
    return {path: path.lstat().st_size for path in paths}


def _files(paths: Iterable[Path]) -> Iterator[tuple[Path, int]]:
    """Yield the files and links of the paths, also of each repository among them, with their sizes.

    git lists a submodule or an inner repository as one path. A FIFO is left out: reading it would
    wait. Each path is looked up once: the files of a repository may lie on a slow file system.
    """
    for path in paths:
        try:
            status = path.lstat()
        except (FileNotFoundError, NotADirectoryError):  # deleted, but still in git's index
            continue
        mode = status.st_mode
        if stat.S_ISLNK(mode) or stat.S_ISREG(mode):
            yield path, status.st_size
        elif stat.S_ISDIR(mode) and (path / ".git").exists():
            yield from source_files(path).items()


def _is_bytecode(path: Path) -> bool:
    return path.suffix == ".pyc" and path.parent.name == "__pycache__"


def git(repository: Path, *arguments: str) -> str | None:
    """What git prints; None without git or outside a repository."""
    with git_begun(repository, *arguments) as answer:
        return answer()


@contextlib.contextmanager
def git_begun(repository: Path, *arguments: str) -> Iterator[Callable[[], str | None]]:
    """A block during which git runs. Yields a function that waits for it, then returns as `git`."""
    command = ["git", "-C", str(repository), *arguments]
    env = environment.for_reading(os.environ, environment.Door.GIT)
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
        )
    except OSError:
        yield lambda: None
        return

    def answer() -> str | None:
        text = process.communicate()[0].decode("utf-8", "surrogateescape")
        return text.strip("\n") if process.returncode == 0 else None

    with process:  # its end closes the pipe, so git ends, too, and waits for git
        yield answer


def digest(folder: Path, paths: Iterable[Path | str]) -> str:
    """SHA-256 over names, modes and contents. Each path is `folder/name`, in whatever form."""
    total, folder_name = hashlib.sha256(), f"{folder}/"
    for path in map(str, paths):
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            kind, content = b"link", os.fsencode(os.readlink(path))
        else:
            kind = b"exec" if status.st_mode & stat.S_IXUSR else b"file"
            content = _content(path, status.st_size)
        name = os.fsencode(path.removeprefix(folder_name))
        total.update(b"%s\0%d\0%s\0" % (name, len(content), kind) + content)
    return total.hexdigest()


def _content(path: str, size: int) -> bytes:
    """The bytes of a file; without a file object, which would take as long as the reading."""
    descriptor, parts = os.open(path, os.O_RDONLY), []
    try:
        while part := os.read(descriptor, size + 1):
            parts.append(part)
    finally:
        os.close(descriptor)
    return b"".join(parts)


def _walk(folder: Path, skipped: Set[str], are_links_followed: bool = False) -> Iterator[Path]:
    """The files below a folder; `/name` in `skipped` is a folder at its top only."""
    for root, folders, names in os.walk(folder, followlinks=are_links_followed):
        here = skipped | {name[1:] for name in skipped if name[0] == "/" and Path(root) == folder}
        folders[:] = [name for name in folders if name not in here]
        all_links = [name for name in folders if (Path(root) / name).is_symlink()]
        links = [] if are_links_followed else all_links
        yield from (Path(root) / name for name in [*names, *links] if name != LIST)


def _copy(repository: Path, paths: list[Path], copy: Path) -> None:
    for path in paths:
        target = copy / path.relative_to(repository)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target, follow_symlinks=False)
        if not path.is_symlink():
            target.chmod(target.stat().st_mode & ~0o222)
    names = (os.fsencode(path.relative_to(repository)) for path in paths)
    (copy / LIST).write_bytes(b"\0".join(names))
    for root, _, _ in os.walk(copy):
        os.chmod(root, 0o755)
