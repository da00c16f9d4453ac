"""The command clean: delete runs that are over, and frozen code that no run names.

A folder is renamed before it is deleted, so after a kill no run is there in part.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ...base import answer, files, installation
from ...base.console import display_path, print_line, quantity, user_name
from ...base.errors import FailedError, UserError
from ...commands import arguments
from ...contract.rundir import File, RunDir
from ...contract.spec import Spec
from ...runs import code_snapshot, lookup, state
from ...runs.state import RunFiles, RunPhase, RunState
from ...slurm import job_list

OVER = (RunPhase.COMPLETED, RunPhase.HELD, RunPhase.CANCELLED, RunPhase.STOPPED, RunPhase.LOST)
DAYS = 30
DELETED = ".deleted-"  # what a clean has renamed and not yet deleted
MIN_CODE_AGE_S = 3600.0  # a submit may be using it before its run directory exists
_RUN = RunDir(Path())
_FILES = {getattr(_RUN, name).name for name, each in vars(RunDir).items() if isinstance(each, File)}
# Beside these, at the top of a run: by attempts, by plugins, or for a moment.
_MORE = re.compile(
    r"attempt-\d+|logs|timeline|work\.json|preemption\.json|compile-cache|wandb|mlruns|report\.html"
    r"|weights.*\.safetensors(\.index\.json)?|(progress|saved)\.tmp|\.(owner|submit-claim|nfs|.*\.tmp).*"
)
# Of code; unfinished or broken ones, too.
_COPY = re.compile(rf"{code_snapshot.NAME.pattern}|(\.copy-|\.broken-|{re.escape(DELETED)}).*")
MAKE = ("", "RUN... YES FLAGS")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"{arguments.RUN}: only these")
    parser.add_argument("--yes", action="store_true", help="delete; otherwise only list")
    help_of_days = f"only what has not changed for this time (default: {DAYS}, 0 with RUN)"
    parser.add_argument("--days", type=float, metavar="N", help=help_of_days)


def command(args: argparse.Namespace) -> int:
    """List what may be deleted; delete it with --yes. Returns the exit code.

    Raises: FailedError where something could not be deleted.
    """
    days = args.days if args.days is not None else (0 if args.runs else DAYS)
    if not days >= 0:
        raise UserError(f"--days {days:g}: a number from 0 on")
    named = [run for text in args.runs for run in lookup.find_all(text)]
    runs = [run for run in named or lookup.all_runs() if files.is_dir(run.path)]
    seen = {run_dir: state.read_files(run_dir) for run_dir in runs}  # before Slurm is asked
    over = list(_over(seen, days * 86400))
    code = [] if args.runs else list(_unused_code(lookup.runs_root(), over, days * 86400))
    sizes = {path: size_of(path) for path in [*(run_dir.path for run_dir in over), *code]}
    for path, size in sizes.items():
        print(f"{size / 2**20:9.1f} MiB  {display_path(path)}")
    found = f"{quantity(len(over), 'run')} and {len(code)} copies of code"
    if not (over or code):
        print("nothing to delete")
    elif not args.yes:
        again = f"repeat it with {installation.option('--yes')}"
        print(f"{found}; nothing is deleted yet: {again}", flush=True)
    else:
        failed = sum(not _delete_run(run_dir, seen[run_dir]) for run_dir in over)
        fresh = time.time() - MIN_CODE_AGE_S  # a submit touches the copy that it takes
        unused = [path for path in code if path.lstat().st_mtime < fresh]
        failed += sum(not _delete(path, path.parent) for path in unused)
        if failed:
            raise FailedError(f"{failed} of {found} could not be deleted, see above")
        print(f"{found} deleted")
    found_here = [{"path": str(path), "bytes": size} for path, size in sizes.items()]
    answer.give(folders=found_here, deleted=args.yes)
    return 0


def _over(seen: Mapping[RunDir, RunFiles], older_than_s: float) -> Iterator[RunDir]:
    """Yield runs that are over and old enough; print which runs are kept and why."""
    named = [job for each in seen.values() for job in each.jobs]
    lives = job_list.ask(named) if named else {}
    is_silent = any(life.is_silent for life in lives.values())
    for run in (state.judge(each, lives) for each in seen.values()):
        path, reason = run.run_dir.path, why_busy(run, is_silent)
        if reason is None:
            if run.phase not in OVER or age_s(run.run_dir) < older_than_s:
                continue
            reason = why_no_run(path)
        if reason is None:
            yield run.run_dir
        else:
            print_line(f"{display_path(path)} is kept: {reason}")


def why_no_run(path: Path) -> str | None:
    """Return what a folder has that no run of the kit has; None for a run."""
    try:
        name = Spec.read(path / _RUN.spec).name
    except (OSError, UserError) as error:
        return f"no spec is read, as of a run: {str(error).partition(chr(10))[0]}"
    if name != path.parent.name:
        return f"it is a run of {name}, in a folder of another name: move it back"
    for entry in os.listdir(path):
        if entry not in _FILES and not _MORE.fullmatch(entry):
            return f"the kit makes no {entry} in a run: move it out, or delete the run by hand"
    return None


def age_s(run_dir: RunDir) -> float:
    """Return the seconds since a run was frozen, resumed or ended, by the times of its files."""
    times = [0.0]
    for path in (run_dir.path, run_dir.spec, run_dir.result, run_dir.attempts, run_dir.submission):
        files.ask_again(path)
        with contextlib.suppress(FileNotFoundError):
            times.append(path.stat().st_mtime)
    return time.time() - max(times)


def why_busy(run: RunState, is_silent: bool) -> str | None:
    """Return why a run must not be changed now; None for one without a job or process.

    is_silent: Slurm did not answer.
    """
    run_dir = run.run_dir
    if run_dir.path.stat().st_uid != os.geteuid():
        return f"it belongs to user {user_name(run_dir.path.stat().st_uid)}"
    if run.files.problem is not None:
        return run.files.problem.partition("\n")[0]
    if run.process is not None:
        return run.life.why if run.life and run.life.why else f"it runs on {run.process.host}"
    if is_silent and run.files.submitted is not None:
        return "Slurm does not answer whether its job still runs"
    if any(life.is_alive for life in run.lives.values()):
        return "it is queued or running"
    return next((life.why for life in run.lives.values() if life.is_alive is None), None)


def _unused_code(root: Path, gone: Sequence[RunDir], older_than_s: float) -> Iterator[Path]:
    """Yield copies of code that no run of the root names, and what a killed clean left."""
    yield from filter(_is_own_folder, files.files_in(root, f"{DELETED}*"))
    if (root / ".code").is_symlink():
        print_line(f"all code is kept: {root / '.code'} is a link")
        return
    try:
        named = _named_code(root, {run_dir.path for run_dir in gone})
    except OSError as error:
        print_line(f"all code is kept: {str(error).partition(chr(10))[0]}")
        return
    for path in files.files_in(root / ".code", "*"):
        files.ask_again(path)  # a submit on another host may be taking it
        is_old = time.time() - path.lstat().st_mtime >= max(MIN_CODE_AGE_S, older_than_s)
        is_copy = _COPY.fullmatch(path.name)
        if is_copy and is_old and path.name not in named and _is_own_folder(path):
            yield path


def _is_own_folder(path: Path) -> bool:
    status = path.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _named_code(root: Path, without: set[Path]) -> set[str]:
    """Return the names of the code copies of all runs below a root. Raises: OSError."""

    def fail(error: OSError) -> None:
        # A closed run of another user: what it executes is a copy of that user.
        if not isinstance(error, PermissionError) or Path(error.filename).stat().st_uid == me:
            raise error

    me = os.geteuid()
    names: set[str] = set()
    files.renew_mount(root)
    for folder, folders, inner in os.walk(root, onerror=fail):
        run_dir = RunDir(Path(folder))
        is_run = "spec.json" in inner or run_dir.code.is_symlink()
        folders[:] = [] if is_run else [name for name in folders if name[0] != "."]
        if not is_run or run_dir.path in without:
            continue
        for link in (run_dir.code, run_dir.kit):
            if link.is_symlink():
                names.add(Path(os.readlink(link)).name)
    return names


def _delete_run(run_dir: RunDir, before: RunFiles) -> bool:
    """Delete a run and the folder of its name, if that is empty then; returns whether it could."""
    if state.read_files(run_dir) != before:
        print_line(f"{display_path(run_dir.path)} is kept: the run was started meanwhile")
        return False
    if not _delete(run_dir.path, lookup.own_root(run_dir)):
        return False
    latest = run_dir.path.with_name("latest")
    with contextlib.suppress(OSError):
        if latest.is_symlink() and not latest.exists():
            latest.unlink()
        run_dir.path.parent.rmdir()  # other runs have the name
    return True


def _delete(path: Path, folder: Path) -> bool:
    """Rename a folder to a hidden one of `folder` and delete it; returns whether it could."""
    try:
        aside = path.rename(folder / f"{DELETED}{os.urandom(4).hex()}")
        code_snapshot.delete(aside)  # frozen code is read-only
    except OSError as error:
        print_line(f"{display_path(path)} is kept: {error}")
        return False
    return True


def size_of(path: Path) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total
