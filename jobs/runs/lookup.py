"""Finds runs by directory, run id, job id or name, and the jobs of a run.

Standard library only; it calls no Slurm command.
"""

import difflib
import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path

from .. import hooks
from ..base import files, installation
from ..base.console import user_name
from ..base.errors import UserError
from ..contract import records
from ..contract.records.queued import Submission
from ..contract.rundir import RunDir
from . import ownership

# RUN_ID:JOBID of the job before this one. A job with it is a successor even where its predecessor
# was killed before it could write successor.json.
SUCCEEDS = "KIT_SUCCEEDS"


class NoSuchRunError(UserError):
    """No run has the name or id that the user gave; the message lists similar ones."""


def runs_root(configured: str | None = None) -> Path:
    """Return the absolute folder of run directories: `configured`, else $KIT_RUNS, else ./runs.

    The command `kit` takes `runs` at the top of the repository, from any folder in it.
    """
    if chosen := configured or os.environ.get("KIT_RUNS"):
        from ..contract.problems import expand_path  # status often does without

        try:
            return Path(chosen if configured else expand_path(chosen)).absolute()
        except ValueError as error:
            raise UserError(f"KIT_RUNS: {error}\n  hint: write the path out") from None
    here = Path.cwd()
    return ((not installation.IS_BY_MAKE and installation.top_of(here)) or here) / "runs"


def remember(
    run_dir: RunDir, job_id: str, cluster: str = "slurm", root: Path | None = None
) -> None:
    """Link `.jobs/<cluster>-<job id>` in a runs root, by default the run's own, to the run."""
    folder = (root or own_root(run_dir)) / ".jobs"
    folder.parent.mkdir(parents=True, exist_ok=True)
    ownership.make_shared(folder, run_dir.path.stat().st_mode & 0o777)
    files.relink(folder / f"{cluster}-{job_id}", os.path.relpath(run_dir.path, folder))


def own_root(run_dir: RunDir) -> Path:
    """Return the runs root in which a run directory really lies."""
    return run_dir.path.parent.parent


def recall(job_id: str, cluster: str = "*", roots: Iterable[Path] = ()) -> RunDir | None:
    """Return a job id's run directory: `remember`'s last link in the default root or `roots`."""
    folders = {root / ".jobs" for root in (runs_root(), *roots)}
    links = (folder / name for folder in folders for name in files.names_in(folder))
    named = (link for link in links if fnmatch(link.name, f"{cluster}-{job_id}"))
    leading = (link for link in named if files.is_dir(_real(link)))
    newest = max(leading, key=lambda link: link.lstat().st_mtime, default=None)
    return None if newest is None else RunDir(_real(newest))


def all_runs() -> list[RunDir]:
    """Return every run of the default runs root, newest first.

    A run that lies in another root has a link here. Its real directory is returned: the batch
    script refuses a link, which may lead elsewhere at a requeue.
    """
    specs = (path / "spec.json" for path in children())
    runs = {RunDir(_real(x.parent)) for x in specs if os.path.isfile(x) or files.is_file(x)}
    return sorted(runs, key=lambda run_dir: run_dir.run_id, reverse=True)


def children() -> Iterator[Path]:
    """Yield what lies two levels below the default runs root, without hidden folders and links."""
    root = runs_root()
    files.renew_mount(root)
    for folder in (root / name for name in files.names_in(root) if name[0] != "."):
        try:
            names = [name for name in files.names_in(folder) if name != "latest"]
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.ELOOP):  # of another user, or a bad link
                raise
            continue
        if names:
            real = folder.resolve()
            yield from (real / name for name in names)


def _real(path: Path) -> Path:
    """Return the path to which a link in a real folder leads; any other path as it is."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def find(text: str | None) -> RunDir:
    """Return the real directory of a run, by run directory, run id, job id or name.

    A name (or None, for any name) means its newest run that was queued or started. A run that was
    refused before it started counts only where there is no other.

    Raises: NoSuchRunError; UserError for a group of several runs.
    """
    if text is not None and (group := hooks.group(text)) is not None:
        runs = group.runs()
        what = f"{group.path.name} has {len(runs)} runs, and this command takes one"
        raise UserError(what, f"such as {runs[0].run_id}; status, cancel and resume take all")
    runs = all_runs()
    if text is None:
        if not runs:
            hint = f"begin with {installation.FIRST_SUBMIT}"
            raise NoSuchRunError(f"no runs in {runs_root()} yet\n  hint: {hint}")
        return newest_begun(runs)
    if is_run_dir(path := Path(os.path.expanduser(text))):
        return RunDir(path.resolve())
    by_id = [run_dir for run_dir in runs if run_dir.run_id == text]
    is_job_id = text.replace("_", "").isdigit()  # `12`, or `12_3` in an array
    by_job = recall(text, roots={own_root(run_dir) for run_dir in runs}) if is_job_id else None
    if by_id or by_job:
        return by_job or by_id[0]
    if named := [run_dir for run_dir in runs if run_dir.path.parent.name == text]:
        return newest_begun(named)
    if os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK):
        raise UserError(f"{path} is closed to you: it is of user {user_name(path.stat().st_uid)}")
    names = sorted({run_dir.path.parent.name for run_dir in runs} | {run.run_id for run in runs})
    near = difflib.get_close_matches(text, names, n=3, cutoff=0.6)
    listed = f"{installation.command('status')} lists the runs"
    hint = f"did you mean {' or '.join(near)}?" if near else listed
    raise NoSuchRunError(f"no run {text!r} in {runs_root()}\n  hint: {hint}")


def find_all(text: str | None) -> list[RunDir]:
    """Return the runs that a user means, newest first: all runs of a name; of None all of the root.

    Of a group its runs, in their order. Text that is no name means one run, as in `find`.
    Raises: NoSuchRunError.
    """
    if text is not None and (group := hooks.group(text)) is not None:
        return group.runs()
    runs = all_runs()
    if text is None:
        return runs
    named = [run_dir for run_dir in runs if run_dir.path.parent.name == text]
    return named if named and not is_run_dir(Path(os.path.expanduser(text))) else [find(text)]


def newest_begun(runs: list[RunDir]) -> RunDir:
    """Return the first run that was queued or started, else the first. `runs`: newest first."""
    return next(filter(has_begun, runs), runs[0])


def has_begun(run_dir: RunDir) -> bool:
    """Return whether a run was queued or started at least once."""
    if job_id_of(run_dir) is not None:
        return True
    names = files.names_in(run_dir.path)
    written = (run_dir.attempts, run_dir.owner, run_dir.result)
    return any(file.name in names for file in written) or files.exists(run_dir.attempt(1).plan)


def is_run_dir(path: Path) -> bool:
    """Return whether a path is a run directory, also one that has lost its spec.json.

    False for text that cannot be a path.
    """
    if files.is_file(path / "spec.json"):
        return True
    return files.exists(path / "code") and files.is_dir(path / "checkpoints")


def job_id_of(run_dir: RunDir) -> str | None:
    """Return the id of the Slurm job that was last submitted for a run; None for a local run."""
    submission = records.read(Submission, run_dir.submission)
    return None if submission is None else submission.job_id


def predecessor(run_dir: RunDir, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the id of the job of this run that this job succeeds; None if a user submitted it."""
    run_id, _, job_id = environ.get(SUCCEEDS, "").partition(":")
    return job_id if job_id and run_id == run_dir.run_id else None
