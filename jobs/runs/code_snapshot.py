"""The frozen code: a read-only copy of the repository, shared by runs of equal code."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from .. import environment, installation, shared_files
from ..console import print_line
from ..errors import UserError

MAX_MIB = 256
DEFAULT_MODE = 0o700  # of a run directory
_MODES = range(0o700, 0o1000)
LIST = ".frozen-files"  # in each copy, the names of its files
SKIPPED_FOLDERS = frozenset({".git", ".venv", "__pycache__", "node_modules"})


class SnapshotError(OSError):
    """The repository cannot be copied; the text says why and what to do."""

    def __init__(self, message: str, place: Path) -> None:
        super().__init__(0, message, str(place))


def take(
    repository: Path,
    runs_root: Path,
    paths: list[Path] | None = None,
    mode: int = DEFAULT_MODE,
    left_out: Collection[str] = (),
) -> Path:
    """Copy the repository to `<runs_root>/.code/<sha>` unless it is there; returns that folder.

    A copy with changed or missing files (a scratch purge, for example) is replaced. A copy that is
    taken again gets a new time: the command clean deletes none that was taken in the last hour.
    `paths`: the files to copy; by default those of `source_files` but `left_out`, names of them.
    `mode`: dir_mode of the run. Runs share a copy only if their mode is the same.

    Raises: OSError.
    """
    sizes = source_files(repository, None, left_out) if paths is None else _sizes(paths)
    paths = list(sizes)
    if runs_root.is_relative_to(repository):  # not where the repository itself lies in it
        paths = [path for path in paths if not path.is_relative_to(runs_root)]
    _check(repository, sizes, paths)
    links: list[str] = []
    sha = _with_mode(digest(repository, paths, links), mode)
    outside = {path for path in map(Path, links) if _is_code_elsewhere(path, repository)}
    if outside:  # a copy with their content has the name that it would have without links
        sha = _with_mode(digest(repository, paths, followed=outside), mode)
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
        _copy(repository, paths, copy, mode, outside)
        # A file may have changed since, such as the output of this very command.
        copied = [f"{copy}/{path.relative_to(repository)}" for path in paths]
        target = target.with_name(_with_mode(digest(copy, copied), mode))
        copy.rename(target)  # not jobs.rundir.replacing: that is for one file
    except OSError:
        delete(copy)
        if not shared_files.is_dir(target):  # else another submit made the same copy meanwhile
            raise
    return target


def _check(repository: Path, sizes: Mapping[Path, int], paths: Sequence[Path]) -> None:
    """Raises: SnapshotError for too much code."""
    size = sum(sizes[path] for path in paths)
    if size > MAX_MIB * 2**20:
        largest = max(paths, key=sizes.__getitem__)
        raise SnapshotError(
            f"the code to freeze has {size // 2**20} MiB, more than {MAX_MIB}; the largest file is "
            f"{largest.relative_to(repository)}\n  hint: add data and outputs to .gitignore",
            repository,
        )


def take_kit(runs_root: Path, mode: int = DEFAULT_MODE) -> Path:
    """Return a copy of this kit as of `take`, in which slurm_job_kit has the parts.

    Raises: OSError.
    """
    with tempfile.TemporaryDirectory(prefix="kit-") as name:
        package = Path(name).resolve() / installation.NAME
        ignored = shutil.ignore_patterns("__pycache__", *installation.PARTS)
        shutil.copytree(installation.PACKAGE, package, ignore=ignored)
        for part in installation.PARTS:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(installation.HOME / part, package / part, ignore=ignored)
        return take(package.parent, runs_root, sorted(_walk(package, set())), mode)


def _is_clone(repository: Path) -> bool:
    return installation.IS_CLONE and repository == installation.ROOT


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
    if top is None and not installation.IS_BY_MAKE and here in (Path.home(), Path("/")):
        raise UserError(f"{here} is no repository\n  hint: run kit in the folder of your code")
    return top or (root if installation.IS_BY_MAKE else here)


def is_whole(copy: Path) -> bool:
    """Return whether a copy still is what its name says; see `damage`."""
    return damage(copy) is None


def damage(copy: Path) -> str | None:
    """Return how a copy differs from what its name says, with the first file; None if it does not.

    Its files are read-only, but root writes all the same. Bytecode, logs and core dumps that ranks
    left in it change nothing that runs: it is the working directory of the trainer's ranks.
    """
    if _damage(copy) is None:
        return None
    # Another host may have just made it or its files.
    shared_files.ask_again(copy / LIST)
    with contextlib.suppress(OSError):
        for name in frozen_names(copy):
            shared_files.ask_again(copy / name)
    return _damage(copy)


def _damage(copy: Path) -> str | None:
    try:
        names = frozen_names(copy)
        actual = digest(copy, [f"{copy}/{name}" for name in names])
    except FileNotFoundError as error:
        return f"{os.path.realpath(error.filename)} is missing"
    if not any(_with_mode(actual, mode) == copy.name for mode in _MODES):
        changed = (name for name in [*names] if _changed_after_the_list(copy, name))
        return f"{copy / next(changed, '')} was changed"
    from . import script_files

    known = {*names}
    added = sorted(_walk(copy, skipped={"__pycache__"}))
    relative = ((path, path.relative_to(copy)) for path in added)
    new = (
        path
        for path, own in relative
        if str(own) not in known and not any(part.startswith(".") for part in own.parts)
    )
    foreign = next((path for path in new if not script_files.is_log(path.name)), None)
    return None if foreign is None else f"{foreign} was added"


def _changed_after_the_list(copy: Path, name: str) -> bool:
    try:
        return (copy / name).lstat().st_ctime_ns > (copy / LIST).lstat().st_ctime_ns
    except FileNotFoundError:
        return False


def _with_mode(sha: str, mode: int) -> str:
    """Return the name of a copy for runs whose dir_mode is `mode`."""
    return sha if mode == DEFAULT_MODE else hashlib.sha256(f"{sha} {mode:o}".encode()).hexdigest()


def _read_only(mode: int) -> int:
    return mode & ~0o222


def _file_mode(source: int, mode: int) -> int:
    """Return a frozen file's mode: whom the run's dir_mode lets in may read it, and execute it."""
    executes = 0o111 if source & 0o100 else 0
    return _read_only(source & 0o777 | mode & (0o444 | executes))


def delete(copy: Path) -> None:
    """Delete a copy, whose folders are read-only. Raises: OSError."""
    for folder, _, _ in os.walk(copy):
        with contextlib.suppress(PermissionError):
            os.chmod(folder, 0o700)
    shutil.rmtree(copy)


def frozen_names(copy: Path) -> list[str]:
    """Return names of a copy's files, relative to it; all that exist if a purge deleted the list.

    Raises: FileNotFoundError, OSError.
    """
    if copy.is_dir() and not (copy / LIST).exists():
        paths = sorted(_walk(copy, skipped={"__pycache__"}))
        return [str(path.relative_to(copy)) for path in paths]
    return [os.fsdecode(name) for name in (copy / LIST).read_bytes().split(b"\0") if name]


@dataclass(frozen=True)
class Listing:
    """The names of the files of a folder that its ignore files do not name, relative to it."""

    tracked: frozenset[str]
    untracked: frozenset[str]
    is_git: bool  # False: git does not know which are tracked; all count as untracked
    warning: str | None = None


_LISTED = ("ls-files", "-z", "-t", "--cached", "--others", "--exclude-standard")


def listing(folder: Path) -> Listing:
    """Return the files of a folder that may be frozen.

    Where git does not read the repository, the warning has git's words, and the ignore files are
    obeyed all the same. Files that git tracks are known if its index can be read.
    """
    answer = ask_git(folder, *_LISTED)
    top = installation.top_of(folder)
    if answer.text is not None:
        return _parse_listing(answer.text)
    if top is None:
        return Listing(frozenset(), _names(_walk_unignored(folder, folder), folder), False)
    read = _read_from_outside(folder, top)
    if read is None:
        read = Listing(frozenset(), _names(_walk_unignored(folder, top), folder), False)
    unknown = "" if read.is_git else "; which files git tracks is not known"
    warning = (
        f"warning: git does not read {folder}: {answer.error}\n  what its .gitignore names is left "
        f"out all the same; the commit is not recorded{unknown}"
    )
    return replace(read, warning=warning)


def _parse_listing(text: str) -> Listing:
    tagged = {(each[0], each[2:]) for each in text.split("\0") if each}
    untracked = frozenset(name for tag, name in tagged if tag == "?")
    return Listing(frozenset(name for _, name in tagged) - untracked, untracked, True)


def _names(paths: Iterable[Path], folder: Path) -> frozenset[str]:
    return frozenset(str(path.relative_to(folder)) for path in paths)


def _read_from_outside(folder: Path, top: Path) -> Listing | None:
    """Return what git finds with copies of a repository's lists; None without git or such a list.

    No other file of the repository's .git is read: its configuration may start programs, which is
    why git reads none of another owner.
    """
    with tempfile.TemporaryDirectory(prefix="kit-git-") as name:
        if git(folder, "init", "-q", "--bare", name) is None:
            return None
        own = Path(name, "info/exclude")
        for source, target in (
            (_git_file(top, "index"), Path(name, "index")),
            (_exclude(top), own),
        ):
            with contextlib.suppress(OSError):
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(source, target)
        git_as = (f"--git-dir={name}", f"--work-tree={top}")
        listed = git(folder, *git_as, *_LISTED)
        is_git = listed is not None and Path(name, "index").is_file()
        if listed is None:  # the index is broken
            Path(name, "index").unlink(missing_ok=True)
            listed = git(folder, *git_as, *_LISTED)
    return None if listed is None else replace(_parse_listing(listed), is_git=is_git)


def _git_file(top: Path, name: str) -> Path:
    """Return a file of a repository's .git, or of where a worktree's or submodule's .git leads."""
    known = top / ".git"
    with contextlib.suppress(OSError):
        if known.is_file():
            known = top / known.read_text("utf-8").partition("gitdir: ")[2].strip()
    return known / name


def _exclude(top: Path) -> Path:
    """Return the list info/exclude of a repository; all its worktrees have one together."""
    with contextlib.suppress(OSError):
        common = _git_file(top, "commondir").read_text("utf-8").strip()
        return _git_file(top, common) / "info/exclude"
    return _git_file(top, "info/exclude")


def _walk_unignored(folder: Path, top: Path) -> Iterator[Path]:
    """Yield files below a folder that no ignore file names, from that of `top` on; without git."""
    rules = [*_ignore_rules(_users_excludes(), top), *_ignore_rules(_exclude(top), top)]
    rules += [rule for each in (*reversed(folder.parents), folder) for rule in _own(each, top)]
    known = {str(folder): rules}
    for root, folders, names in os.walk(folder):
        here = Path(root)
        rules = known.pop(root)
        if here != folder:
            rules = rules + _own(here, top)
        skipped = SKIPPED_FOLDERS | ({"runs"} if here == folder else set())
        kept = [each for each in folders if each not in skipped]
        links = [each for each in kept if (here / each).is_symlink()]
        files = [each for each in (*names, *links) if not _is_ignored(here / each, False, rules)]
        yield from (here / each for each in files)
        folders[:] = [
            each for each in kept if each not in links and not _is_ignored(here / each, True, rules)
        ]
        known |= {str(here / each): rules for each in folders}


@dataclass(frozen=True)
class _Rule:
    """A line of an ignore file. Source: gitignore(5)."""

    base: str  # the folder of the file, with a slash
    pattern: re.Pattern[str]  # of a path below it
    is_for_folders: bool
    is_negated: bool


def _users_excludes() -> Path:
    """Return the ignore file of a user's repositories. Source: git-config(1), core.excludesFile."""
    default = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config", "git")
    for file in (Path("~/.gitconfig"), default / "config"):
        with contextlib.suppress(OSError, RuntimeError):
            text = file.expanduser().read_text("utf-8", "replace")
            if match := re.search(r"^\s*excludesfile\s*=\s*\"?([^\"\n]+)", text, re.I | re.M):
                return Path(match[1].strip()).expanduser()
    return Path(os.path.expanduser(default / "ignore"))


def _own(folder: Path, top: Path) -> list[_Rule]:
    is_inside = folder == top or folder.is_relative_to(top)
    return _ignore_rules(folder / ".gitignore", folder) if is_inside else []


def _ignore_rules(file: Path, base: Path) -> list[_Rule]:
    try:
        lines = file.read_text("utf-8-sig", "surrogateescape").splitlines()  # git skips a BOM
    except (FileNotFoundError, NotADirectoryError):
        return []
    rules = []
    for line in lines:
        text = line if line.endswith("\\ ") else line.rstrip()
        is_negated = text.startswith("!")
        text = text[is_negated:]
        if not text or text.startswith("#"):
            continue
        glob = text.rstrip("/").removeprefix("\\")
        is_anchored = "/" in glob
        pattern = re.compile(("" if is_anchored else "(?:.*/)?") + _regex(glob.lstrip("/")), re.S)
        rules.append(_Rule(f"{base}/", pattern, text.endswith("/"), is_negated))
    return rules


_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "lower": "a-z",
    "upper": "A-Z",
    "space": r"\s",
    "blank": r" \t",
    "xdigit": "0-9a-fA-F",
    "punct": r"!-/:-@\[-`{-~",
}
_PART = re.compile(r"\\.|\*\*/|/\*\*$|\*|\?|\[[!^]?\]?(?:\[:\w+:\]|\\.|[^\]\\])*\]")


def _regex(glob: str) -> str:
    """Return the regular expression of a gitignore(5) pattern: * stops at a slash, ** does not."""
    known = {"**/": "(?:.*/)?", "/**": "/.*", "*": "[^/]*", "?": "[^/]"}
    texts, end = [], 0
    for match in _PART.finditer(glob):
        part = match[0]
        texts += [re.escape(glob[end : match.start()]), known.get(part) or _set_or_char(part)]
        end = match.end()
    return "".join([*texts, re.escape(glob[end:])])


def _set_or_char(part: str) -> str:
    if part[0] == "\\":
        return re.escape(part[1:])
    inner, sign = (part[2:-1], "^") if part[1] in "!^" else (part[1:-1], "")
    inner = re.sub(r"\[:(\w+):\]", lambda each: _CLASSES.get(each[1], ""), inner)
    inner = re.sub(r"(?<!\\)([\[&~|])", r"\\\1", inner)
    if inner.startswith("]"):
        inner = "\\" + inner
    try:
        re.compile(f"[{sign}{inner}]")
    except re.error:
        return "(?!)"  # git matches nothing by it
    return f"[{sign}{inner}]"


def _is_ignored(path: Path, is_folder: bool, rules: Sequence[_Rule]) -> bool:
    for rule in reversed(rules):
        name = str(path).removeprefix(rule.base)
        if (is_folder or not rule.is_for_folders) and rule.pattern.fullmatch(name):
            return not rule.is_negated
    return False


def source_files(
    repository: Path, at_most: int | None = None, left_out: Collection[str] = ()
) -> dict[Path, int]:
    """Return the files to freeze, sorted, and their sizes: tracked, and untracked but not ignored.

    All without git. Not `left_out`, names relative to the repository, and no untracked file with
    the name of a secret. `at_most`: so many of them, in any order.
    """
    from . import script_files

    listed = listing(repository)
    if listed.warning is not None:
        print_line(listed.warning)
    secrets = sorted(
        name
        for name in listed.untracked - {*left_out}
        if script_files.is_secret(name) or script_files.has_private_key(repository / name)
    )
    if secrets:
        more = f" and {len(secrets) - 1} more" if len(secrets) > 1 else ""
        print_line(
            f"warning: {repository / secrets[0]}{more} is left out of the frozen code: by its name "
            "or content it holds a secret, and git does not track it\n  hint: if it is data of "
            "the training, git add it, or give it another name"
        )
    # A run has a copy of the kit beside its code.
    of_kit = {*installation.PARTS, installation.NAME} if _is_clone(repository) else set()
    names = (listed.tracked | listed.untracked) - {*secrets, *left_out}
    names = frozenset(name for name in names if name.partition("/")[0] not in of_kit)
    paths = (repository / name for name in names)
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


@dataclass(frozen=True)
class GitAnswer:
    """What git printed; text: None where it failed, and `error` has its words."""

    text: str | None
    error: str = ""


def git(repository: Path, *arguments: str) -> str | None:
    """Return what git prints; None without git or outside a repository."""
    return ask_git(repository, *arguments).text


def ask_git(repository: Path, *arguments: str) -> GitAnswer:
    """Return what git prints, or why it fails."""
    with git_begun(repository, *arguments) as answer:
        return answer()


@contextlib.contextmanager
def git_begun(repository: Path, *arguments: str) -> Iterator[Callable[[], GitAnswer]]:
    """Run a block while git runs; yield a function that waits for it and returns its answer."""
    command = ["git", "-C", str(repository), *arguments]
    env = environment.for_reading(os.environ)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    except OSError as error:
        failed = GitAnswer(None, f"git: {error.strerror}")
        yield lambda: failed
        return

    def answer() -> GitAnswer:
        text, error = (
            each.decode("utf-8", "surrogateescape").strip("\n") for each in process.communicate()
        )
        return GitAnswer(text if process.returncode == 0 else None, error)

    with process:  # its end closes the pipe, so git ends, too, and waits for git
        yield answer


def digest(
    folder: Path,
    paths: Iterable[Path | str],
    links: list[str] | None = None,
    followed: Collection[Path] = (),
) -> str:
    """Return SHA-256 over names, modes and contents. Each path is `folder/name`, in whatever form.

    links: gets those that are links. followed: links of which the content counts.
    """
    total, folder_name, as_files = hashlib.sha256(), f"{folder}/", {*map(str, followed)}
    for path in map(str, paths):
        status = os.stat(path) if path in as_files else os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            kind, content = b"link", os.fsencode(os.readlink(path))
            if links is not None:
                links.append(path)
        else:
            kind = b"exec" if status.st_mode & stat.S_IXUSR else b"file"
            content = _content(path, status.st_size)
        name = os.fsencode(path.removeprefix(folder_name))
        total.update(b"%s\0%d\0%s\0" % (name, len(content), kind) + content)
    return total.hexdigest()


def _content(path: str, size: int) -> bytes:
    """Return a file's bytes, without a file object, which would take as long as the reading."""
    descriptor, parts = os.open(path, os.O_RDONLY), []
    try:
        while part := os.read(descriptor, size + 1):
            parts.append(part)
    finally:
        os.close(descriptor)
    return b"".join(parts)


def _walk(folder: Path, skipped: Set[str], are_links_followed: bool = False) -> Iterator[Path]:
    """Yield the files below a folder; `/name` in `skipped` is a folder at its top only."""
    for root, folders, names in os.walk(folder, followlinks=are_links_followed):
        here = skipped | {name[1:] for name in skipped if name[0] == "/" and Path(root) == folder}
        folders[:] = [name for name in folders if name not in here]
        all_links = [name for name in folders if (Path(root) / name).is_symlink()]
        links = [] if are_links_followed else all_links
        yield from (Path(root) / name for name in [*names, *links] if name != LIST)


def _is_code_elsewhere(path: Path, repository: Path) -> bool:
    """Return whether a link leads to code or a configuration outside of the repository.

    Its content is frozen: an edit of it during the run would change a copy that is a link.
    """
    from . import script_files

    if path.suffix.lower() not in script_files.SOURCE_SUFFIXES:
        return False
    return path.is_file() and not path.resolve().is_relative_to(repository.resolve())


def _copy(
    repository: Path, paths: list[Path], copy: Path, mode: int, followed: Collection[Path] = ()
) -> None:
    for path in paths:
        target = copy / path.relative_to(repository)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target, follow_symlinks=path in followed)
        if not path.is_symlink() or path in followed:
            target.chmod(_file_mode(path.stat().st_mode, mode))
    listed = (os.fsencode(path.relative_to(repository)) for path in paths)
    (copy / LIST).write_bytes(b"\0".join(listed))
    (copy / LIST).chmod(0o444)
    for root, _, names in os.walk(copy, topdown=False):
        if any(name.endswith(".py") for name in names):
            os.mkdir(f"{root}/__pycache__", mode)  # Python keeps its bytecode there
            os.chmod(f"{root}/__pycache__", mode)
        os.chmod(root, _read_only(mode))
