"""Freezes a spec and the code into a new run directory; every job of the run reads only these."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from .. import records
from ..config import pipelines
from ..config.load import LoadedSpec
from ..console import print_line
from ..errors import UserError
from ..records.frozen import CodeSnapshot, Overrides, PackageVersion, Provenance
from ..rundir import RunDir, Timeline, relink
from ..spec import Launch, Spec
from . import code_digest, code_snapshot, own_script
from .lookup import runs_root

PACKAGES = ("torch", "numpy", "scikit-learn", "submitit", "pyyaml")
MIN_FREE_MIB = 64
# The plain form, whatever the user's configuration shows people: another program, colours, words.
DIFF = (
    *("-c", "diff.noprefix=false", "-c", "diff.mnemonicPrefix=false", "diff"),
    *("--no-ext-diff", "--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/"),
)


class FreezeError(UserError):
    """The run directory cannot be made; the message has the reason and what to do."""


def new_run_id() -> str:
    """Return a new run id: the local time, by which ids sort, then 65536ths of a second in hex."""
    seconds, fraction = divmod(time.time_ns(), 10**9)
    part = fraction * 2**16 // 10**9
    return time.strftime("%Y%m%d-%H%M%S-", time.localtime(seconds)) + f"{part:04x}"


def planned_run_dir(spec: Spec) -> RunDir:
    """Return the run directory that `freeze` would make for this spec now; nothing is written."""
    return RunDir(runs_root(spec.runs_root) / spec.name / new_run_id())


@contextlib.contextmanager
def freeze(loaded: LoadedSpec, repository: Path | None = None) -> Iterator[RunDir]:
    """Run a block with a new run directory, which is deleted again if the block fails.

    repository: by default `code_snapshot.repository()`. Raises: FreezeError.
    """
    with freeze_all({planned_run_dir(loaded.spec): loaded}, repository) as (run_dir,):
        yield run_dir


@contextlib.contextmanager
def freeze_all(
    runs: Mapping[RunDir, LoadedSpec], repository: Path | None = None
) -> Iterator[list[RunDir]]:
    """Run a block with new run directories of one runs root, all deleted again if the block fails.

    They share one copy of the code. Raises: FreezeError.
    """
    repository = repository or code_snapshot.repository()
    first = next(iter(runs))
    with contextlib.ExitStack() as made:
        runs = {each: _with_script(loaded, repository) for each, loaded in runs.items()}
        check_writable(first.path.parent.parent)
        with _errors_of(first), _commit_begun(repository) as commit:
            root, spec = first.path.parent.parent, runs[first].spec
            mode, left_out = (
                int(spec.dir_mode, 8),
                own_script.leftover_files(spec.launch, repository),
            )
            code = code_snapshot.take(repository, root, mode=mode, left_out=left_out)
            kit = code_snapshot.take_kit(root, mode)
            for run_dir, loaded in runs.items():
                # Outside of the clean-up: a directory that exists already is another run.
                run_dir.path.mkdir(parents=True)
                made.enter_context(_deleted_by_failure(run_dir))
                _fill(run_dir, loaded, code, kit)
                folders: tuple[str, ...] = ()
                if not loaded.spec.launch.is_trainer:
                    folders = _fill_for_script(run_dir, loaded.spec, repository)
                known = _provenance(repository, code.name, loaded.spec.interpreter, commit)
                _record_code(run_dir, replace(known, live_folders=folders))
        yield list(runs)
    for run_dir in runs:
        relink(run_dir.path.parent / "latest", run_dir.run_id)
        link_in_default_root(run_dir.path)


def _with_script(loaded: LoadedSpec, repository: Path) -> LoadedSpec:
    """Return the input with a repository-relative launch.script. Raises: FreezeError without it."""
    if (written := loaded.spec.launch.script) is None:
        return loaded
    loaded = replace(loaded, spec=own_script.normalise_script(loaded.spec, repository))
    if not (repository / str(loaded.spec.launch.script)).is_file():
        raise FreezeError(
            f"launch.script: {written} does not exist\n"
            f"  hint: give its path relative to {repository}"
        )
    return loaded


def _record_code(run_dir: RunDir, known: Provenance) -> None:
    snapshot = replace(
        known.snapshots[0],
        script_code=code_digest.name_of(run_dir.script_code),
        kit=code_digest.name_of(run_dir.kit),
    )
    records.write(run_dir.provenance, replace(known, snapshots=(snapshot,)))


def link_in_default_root(path: Path) -> None:
    """Let the default runs root lead to a run or sweep of another root, if possible."""
    default = runs_root() / path.parent.name
    if default != path.parent:  # the commands look for runs in the default root
        with contextlib.suppress(OSError):
            default.mkdir(parents=True, exist_ok=True)
            relink(default / path.name, str(path))


@contextlib.contextmanager
def _deleted_by_failure(run_dir: RunDir) -> Iterator[None]:
    """Run a block whose failure deletes the new run directory, unless a job may need it."""
    try:
        yield
    except BaseException as error:
        if getattr(error, "may_be_queued", False):
            raise
        shutil.rmtree(run_dir.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # it holds other runs of this name
            run_dir.path.parent.rmdir()
        raise


@contextlib.contextmanager
def _errors_of(run_dir: RunDir) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FreezeError(f"{error.filename or run_dir.path}: {error.strerror}") from error


def check_writable(root: Path) -> None:
    """Raises FreezeError for a runs root in which no run can be written, before a job is queued."""
    if "%" in str(root):
        raise FreezeError(
            f"runs_root {root} has a percent sign, and Slurm replaces %j in paths\n"
            "  hint: set runs_root in the spec, or KIT_RUNS, to a folder without one"
        )
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=root, prefix=".probe-") as probe:
            probe.write(b"x" * 4096)
        free_mib = shutil.disk_usage(root).free // 2**20
    except OSError as error:
        raise FreezeError(
            f"runs_root {root}: {error.strerror}\n"
            "  hint: set runs_root in the spec, or KIT_RUNS, to a folder that you can write to"
        ) from error
    if free_mib < MIN_FREE_MIB:
        raise FreezeError(
            f"runs_root {root}: only {free_mib} MiB are free\n"
            "  hint: delete old runs there, or set runs_root to another disk"
        )


def _fill(run_dir: RunDir, loaded: LoadedSpec, code: Path, kit: Path) -> None:
    spec = loaded.spec
    run_dir.path.chmod(int(spec.dir_mode, 8))
    for folder in (run_dir.checkpoints, run_dir.submitit, run_dir.attempt(1).path):
        folder.mkdir()
    run_dir.timeline("submit").parent.mkdir()
    run_dir.spec.write_text(spec.to_json(), encoding="utf-8")
    run_dir.spec_yaml.write_text(loaded.text, encoding="utf-8")
    records.write(run_dir.overrides, Overrides(tuple(loaded.overrides)))
    run_dir.setup.write_text(setup_script(sys.executable, spec.setup), encoding="utf-8")
    run_dir.code.symlink_to(os.path.relpath(code, run_dir.path))
    run_dir.kit.symlink_to(os.path.relpath(kit, run_dir.path))
    # So that `tail -F` of the log works from submit on.
    first_log = run_dir.attempt(1).rank_log(0)
    first_log.write_text("waiting for the job to start\n", encoding="utf-8")
    run_dir.rank_log(0).parent.mkdir()
    relink(run_dir.rank_log(0), f"../{first_log.parent.name}/{first_log.name}")
    Timeline(run_dir, "submit").event("freeze")
    if not (run_dir.code.is_dir() and run_dir.kit.is_dir()):
        raise FreezeError("the frozen code was deleted meanwhile\n  hint: try again")


def _fill_for_script(run_dir: RunDir, spec: Spec, repository: Path) -> tuple[str, ...]:
    """Freeze a script outside of the repository; make the working directory; print what to know.

    Returns the folders of the repository that pip's editable installs lead to.
    """
    launch = spec.launch
    lines = own_script.format_left_over(
        own_script.leftover_files(launch, own_script.script_home(launch, repository))
    )
    if launch.script is not None and os.path.isabs(launch.script):
        runs_root = run_dir.path.parent.parent
        copy, line = own_script.freeze_outside(launch, runs_root, int(spec.dir_mode, 8))
        run_dir.script_code.symlink_to(os.path.relpath(copy, run_dir.path))
        lines.append(line)
    own_script.check_frozen(launch, run_dir)
    lines += _hiding_pipelines(launch, run_dir)
    script_code = run_dir.script_code if run_dir.script_code.is_symlink() else None
    folders = own_script.freeze_live(spec, repository, run_dir.code, script_code)
    lines += own_script.fill_work(run_dir, launch, repository)
    for line in filter(None, [*lines, own_script.unfrozen_module(launch, repository, folders)]):
        print_line(line)
    return folders


def _hiding_pipelines(launch: Launch, run_dir: RunDir) -> list[str]:
    script = Path(launch.script or "")
    code = (run_dir.script_code if script.is_absolute() else run_dir.code).resolve()
    frozen = code / (script.name if script.is_absolute() else script)
    return pipelines.hiding(launch, frozen, code)


def setup_script(python: str, lines: Sequence[str]) -> str:
    """Return the text of setup.sh: the batch script sources its first line, agent.sh all of it."""
    return "\n".join([f"export KIT_PYTHON={shlex.quote(python)}", *lines]) + "\n"


def provenance(repository: Path, code: str, agent_interpreter: str) -> Provenance:
    """Return commit, versions, interpreter, host. No environment values: they may hold secrets."""
    with _commit_begun(repository) as commit:
        return _provenance(repository, code, agent_interpreter, commit)


# Waits for git, then returns the commit of a repository and the changes since, if it has them.
Commit = Callable[[], tuple[str | None, str | None]]


@contextlib.contextmanager
def _commit_begun(repository: Path) -> Iterator[Commit]:
    """Run a block during which git looks up the commit, while this process copies the code."""
    with (
        code_snapshot.git_begun(repository, "rev-parse", "HEAD") as git_sha,
        code_snapshot.git_begun(repository, *DIFF, "HEAD") as git_diff,
    ):
        yield functools.cache(lambda: (git_sha().text, git_diff().text))


def _provenance(repository: Path, code: str, agent_interpreter: str, commit: Commit) -> Provenance:
    lock = repository / "requirements.lock"
    git_sha, git_diff = commit()
    return Provenance(
        code=code,
        git_sha=git_sha,
        git_diff=_printable(git_diff),
        python=platform.python_version(),
        interpreter=sys.executable,
        host=socket.gethostname(),
        versions=tuple(PackageVersion(name, _version(name)) for name in PACKAGES),
        lock_sha256=hashlib.sha256(lock.read_bytes()).hexdigest() if lock.exists() else None,
        repository=str(repository),
        agent_interpreter=agent_interpreter,
        snapshots=(CodeSnapshot(code, 1, 0, round(time.time(), 3), git_sha),),
    )


def _printable(text: str | None) -> str | None:
    """Return the text with marks for characters UTF-8 cannot encode: a diff holds any bytes."""
    return text and text.encode("utf-8", "replace").decode("utf-8")


def _version(package: str) -> str | None:
    """Return the version of an installed package, if possible from the name of its folder.

    importlib.metadata reads the whole METADATA of each package for it. Source: Python Packaging
    User Guide, "Recording installed projects".
    """
    if version := _versions().get(_canonical(package)):
        return version
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    versions: dict[str, str] = {}
    for folder in map(Path, sys.path):
        names = os.listdir(folder) if folder.is_dir() else []
        for name in names:
            package, dash, version = name.removesuffix(".dist-info").rpartition("-")
            if dash and name.endswith(".dist-info"):
                versions.setdefault(_canonical(package), version)
    return versions


def _canonical(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()
