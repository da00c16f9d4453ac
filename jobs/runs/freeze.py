"""Freezes a spec and the code into a new run directory; every job of the run reads only these."""

import calendar
import contextlib
import functools
import glob
import importlib.metadata
import os
import platform
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from .. import hooks
from ..base.console import BestEffort, print_line
from ..base.errors import UserError
from ..base.files import relink, write_durable
from ..config.loaded import LoadedSpec
from ..contract import records
from ..contract.records.frozen import Overrides, Provenance
from ..contract.records.timeline import Timeline
from ..contract.rundir import RunDir
from ..contract.spec import Spec
from . import code_snapshot, ownership
from .git import ask_git
from .lookup import job_id_of, runs_root

PACKAGES = ("torch", "numpy", "scikit-learn", "submitit", "pyyaml")
ID_TIME = "%Y%m%d-%H%M%S"
MAX_DIFF_MIB = 8  # as JSON up to six times that; a reader takes 64 MiB
# The plain form, whatever the user's configuration shows people: another program, colours, words.
DIFF = (
    "diff",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)


def new_run_id(root: Path) -> str:
    """Return a new run id: the time in UTC, then 65536ths of a second in hex.

    The newest run is that of the greatest id. So it is greater than those of `root` and the default
    root: a host's clock may be ahead, and an older kit took the local time.
    """
    seconds, fraction = divmod(time.time_ns(), 10**9)
    ending = f"-{fraction * 2**16 // 10**9:04x}"
    run_id = time.strftime(ID_TIME, time.gmtime(seconds)) + ending
    for path in (x for each in {root, runs_root()} for x in glob.iglob("*/*-*-*", root_dir=each)):
        if (name := os.path.basename(path)) >= run_id:
            with contextlib.suppress(ValueError):  # it is no id
                after = calendar.timegm(time.strptime(name[:15], ID_TIME)) + 1
                run_id = time.strftime(ID_TIME, time.gmtime(after)) + ending
    return run_id


def planned_run_dir(spec: Spec) -> RunDir:
    """Return the run directory that `freeze` would make for this spec now; nothing is written."""
    root = runs_root(spec.runs_root)
    return RunDir(root / spec.name / new_run_id(root))


@contextlib.contextmanager
def freeze(loaded: LoadedSpec, repository: Path | None = None) -> Iterator[RunDir]:
    """Run a block with a new run directory, which is deleted again if the block fails.

    repository: by default `code_snapshot.repository()`. Raises: UserError.
    """
    with freeze_all({planned_run_dir(loaded.spec): loaded}, repository) as (run_dir,):
        yield run_dir


@contextlib.contextmanager
def freeze_all(
    runs: Mapping[RunDir, LoadedSpec], repository: Path | None = None
) -> Iterator[list[RunDir]]:
    """Run a block with new run directories of one runs root, all deleted again if the block fails.

    Runs with the same code share one copy of it. Raises: UserError.
    """
    repository = repository or code_snapshot.repository()
    sources = {run: hooks.prepare_code(loaded.spec, repository) for run, loaded in runs.items()}
    first, (spec, *_) = next(iter(sources.items()))
    if spec.name[:1] in ("", ".") or "/" in spec.name:
        raise UserError(f"name: {spec.name} cannot be the name of a folder of runs")
    root, mode = first.path.parent.parent, int(spec.dir_mode, 8)
    check_writable(root, mode)

    @functools.cache
    def frozen(home: Path, left_out: tuple[str, ...]) -> tuple[Path, Provenance]:
        code = code_snapshot.take(home, root, mode, left_out)
        return code, provenance(home, code_snapshot.digest_in(code.name))

    with contextlib.ExitStack() as made:
        try:
            kit = code_snapshot.take_kit(root, mode)
            for run_dir, (spec, home, left_out) in sources.items():
                code, known = frozen(home, tuple(left_out))
                # Outside of the clean-up: a directory that exists already is another run.
                ownership.make_shared(run_dir.path.parent, mode)
                run_dir.path.mkdir()
                made.enter_context(deleted_by_failure(run_dir.path, run_dir))
                _fill(run_dir, replace(runs[run_dir], spec=spec), code, kit)
                records.write(run_dir.provenance, known)
        except OSError as error:
            raise UserError(f"{error.filename or first.path}: {error.strerror}") from error
        yield list(runs)
    best_effort = BestEffort("submit")  # a folder may have the name, and the job is queued
    for run_dir in runs:
        latest = run_dir.path.with_name("latest")
        with best_effort():
            if not latest.exists() or os.readlink(latest) < run_dir.run_id:  # a submit may be slow
                relink(latest, run_dir.run_id)
        link_in_default_root(run_dir.path)


def link_in_default_root(path: Path) -> None:
    """Let the default runs root lead to a run or sweep of another root, if possible."""
    default = runs_root() / path.parent.name
    if default != path.parent:  # the commands look for runs in the default root
        with contextlib.suppress(OSError):
            make_root(default.parent, mode := path.stat().st_mode & 0o777)
            ownership.make_shared(default, mode)
            relink(default / path.name, str(path))


@contextlib.contextmanager
def deleted_by_failure(folder: Path, run_dir: RunDir) -> Iterator[None]:
    """Run a block whose failure deletes a new folder, unless a job of the run may need it."""
    try:
        yield
    except BaseException as error:
        # Also what has nothing to do with the job may come after it: a Ctrl-C.
        if getattr(error, "may_be_queued", job_id_of(run_dir) is not None):
            raise
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # it holds other runs of this name
            folder.parent.rmdir()
        raise


def make_root(root: Path, mode: int) -> None:
    """Make a runs root, unless there is one. mode: dir_mode of a run. Raises: OSError."""
    if not root.exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        ownership.make_shared(root, mode)
        (root / ".gitignore").write_text("*\n")  # a user's `git add .` must not take a run


def check_writable(root: Path, mode: int) -> None:
    """Raises UserError for a runs root in which no run can be written, before a job is queued."""
    try:
        make_root(root, mode)
        with tempfile.NamedTemporaryFile(dir=root, prefix=".probe-") as probe:
            probe.write(b"x" * 4096)
        free_mib = shutil.disk_usage(root).free // 2**20
    except OSError as error:
        hint = "set runs_root in the spec, or KIT_RUNS, to a folder that you can write to"
        raise UserError(f"runs_root {root}: {error.strerror}", hint) from error
    if free_mib < 64:
        what = f"runs_root {root}: only {free_mib} MiB are free"
        raise UserError(what, "delete old runs there, or set runs_root to another disk")


def _fill(run_dir: RunDir, loaded: LoadedSpec, code: Path, kit: Path) -> None:
    spec = loaded.spec
    ownership.set_mode(run_dir.path, int(spec.dir_mode, 8))
    for folder in (run_dir.checkpoints, run_dir.submitit, run_dir.attempt(1).path):
        folder.mkdir()
    run_dir.timeline("submit").parent.mkdir()
    write_durable(run_dir.spec, spec.to_json())
    write_durable(run_dir.spec_yaml, loaded.text)
    records.write(run_dir.overrides, Overrides(tuple(loaded.overrides)))
    write_durable(run_dir.setup, setup_script(sys.executable, spec.setup))
    run_dir.code.symlink_to(os.path.relpath(code, run_dir.path))
    run_dir.kit.symlink_to(os.path.relpath(kit, run_dir.path))
    # So that `tail -F` of the log works from submit on.
    first_log = run_dir.attempt(1).rank_log(0)
    first_log.write_text("waiting for rank 0 to start\n", encoding="utf-8")
    run_dir.rank_log(0).parent.mkdir()
    relink(run_dir.rank_log(0), f"../{first_log.parent.name}/{first_log.name}")
    Timeline(run_dir, "submit").event("freeze")
    ownership.check(run_dir)


def setup_script(python: str, lines: Sequence[str]) -> str:
    """Return the text of setup.sh: the batch script sources its first line, agent.sh all of it."""
    return "\n".join([f"export KIT_PYTHON={shlex.quote(python)}", *lines]) + "\n"


def provenance(repository: Path, code: str) -> Provenance:
    """Return commit, versions, interpreter, host. No environment values: they may hold secrets."""
    return Provenance(
        code=code,
        git_sha=_printed_by_git(repository, "rev-parse", "HEAD"),
        git_diff=_printed_by_git(repository, *DIFF, "HEAD"),
        python=platform.python_version(),
        interpreter=sys.executable,
        host=socket.gethostname(),
        versions={name: _version(name) for name in PACKAGES},
        repository=str(repository),
        frozen=round(time.time(), 3),
    )


def _printed_by_git(repository: Path, *arguments: str) -> str | None:
    """Return what git prints, without what is no UTF-8; None without git, a commit, if large."""
    try:
        done = ask_git(repository, *arguments)
    except FileNotFoundError:
        return None
    text = done.stdout.strip("\n").encode("utf-8", "replace").decode("utf-8")
    if len(text) > MAX_DIFF_MIB * 2**20:
        print_line(f"what git calls changed is above {MAX_DIFF_MIB} MiB: the diff is not recorded")
        return None
    return text if done.returncode == 0 else None


def _version(package: str) -> str | None:
    return next((each.version for each in importlib.metadata.distributions(name=package)), None)
