"""The command clean: delete what ended and never-started runs no longer need.

A folder is renamed before it is deleted, so after a kill no run has half of a checkpoint or of its
code. Each run is changed under the claim of `submit_claim`, which submit, resume and cancel take.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import installation, shared_files
from ..checkpoint.names import TEMPORARY_PREFIX
from ..console import display_path, print_line, quantity
from ..errors import FailedError, UserError
from ..rundir import RunDir, relink
from ..runs import code_snapshot, lookup, state
from ..runs.state import RunFiles, RunState
from ..shared_files import files_in
from ..slurm import job_list
from ..slurm.client import Life
from . import arguments, leftovers, run_jobs, unlinked
from .leftovers import Leftover
from .submit_claim import hold_claim

_AGE = re.compile(r"(\d+)([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
KEEPS = "resume, compare and export of the latest and the best checkpoint work as before"
LOSES = "--from, export and resume --checkpoint can no longer name a deleted checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of clean."""
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"{arguments.RUN}: only these")
    parser.add_argument("--yes", action="store_true", help="delete; otherwise only list")
    help_of_age = "only of runs that did not change for so long"
    parser.add_argument("--older-than", default="0m", metavar="30d", help=help_of_age)
    parser.add_argument("--checkpoints", action="store_true", help="only checkpoints")
    help_of_runs = "only the directories of runs that never started"
    parser.add_argument("--runs", dest="has_runs_only", action="store_true", help=help_of_runs)


def command(args: argparse.Namespace) -> int:
    """Run clean; returns the exit code."""
    # A point of a sweep may have been deleted.
    named = [run for text in args.runs for run in lookup.find_all(text)]
    runs = [run for run in named if shared_files.is_dir(run.path)]
    request = Selection(
        tuple(runs) if args.runs else None,
        seconds_of(args.older_than),
        args.checkpoints,
        args.has_runs_only,
    )
    return clean(request, is_dry=not args.yes)


def seconds_of(text: str) -> int:
    """Return the seconds of an age such as 30d, 12h, 90m, 4w. Raises: UserError."""
    match = _AGE.fullmatch(text)
    if match is None:
        raise UserError(f"--older-than {text} is no age\n  hint: 30d, 12h, 90m or 4w")
    return int(match[1]) * _SECONDS[match[2]]


@dataclass(frozen=True)
class Selection:
    """What may be deleted. runs: None for all runs, the shared copies of code included."""

    runs: tuple[RunDir, ...] | None = None
    older_than_s: int = 0
    has_checkpoints_only: bool = False
    has_runs_only: bool = False

    def wants(self, each: Leftover) -> bool:
        if self.has_checkpoints_only or self.has_runs_only:
            is_checkpoint = self.has_checkpoints_only and each.is_checkpoint
            return is_checkpoint or (self.has_runs_only and each.is_run)
        return True


def clean(request: Selection, is_dry: bool) -> int:
    """Print what may be deleted, and why; delete it unless is_dry. Returns the exit code.

    Raises: FailedError where something could not be deleted.
    """
    everything, files = leftovers_of(request)
    chosen = [each for each in everything if request.wants(each)]
    total = 0
    for each in chosen:
        size = leftovers.size_of(each.path)
        total += size
        print(f"{format_size(size):>9}  {display_path(each.path)}: {each.why}")
    if not chosen:
        print("nothing to delete")
        return 0
    where = f"{format_size(total)} in {quantity(len(chosen), 'place')}"
    if any(each.is_checkpoint for each in chosen):
        print(f"{KEEPS}; {LOSES}")
    if is_dry:
        how = installation.command("clean", "", "", "yes")
        print(f"{where}; nothing is deleted yet: repeat it with --yes, as in {how}", flush=True)
        return 0
    failed = delete(chosen, files)
    print(f"{where} deleted" if not failed else f"{len(chosen) - failed} of {len(chosen)} deleted")
    if failed:
        raise FailedError(f"{quantity(failed, 'place')} could not be deleted, see above")
    return 0


def leftovers_of(request: Selection) -> tuple[list[Leftover], dict[RunDir, RunFiles]]:
    """Return what may be deleted, and the files of each run before Slurm was asked, once.

    Prints which runs are left alone and why.
    """
    root, everything = lookup.runs_root().resolve(), lookup.all_runs()
    chosen = everything if request.runs is None else request.runs
    # Before Slurm is asked: the files of a run that another command starts meanwhile differ then.
    files = {run_dir: state.read_files(run_dir) for run_dir in chosen}
    jobs, leftovers, is_idle = Squeue.of(list(files.values())), [], True
    needed = _named_checkpoints(everything)
    roots = {root, *map(lookup.own_root, chosen)}
    points = {point for each in roots for point in unlinked.points_of_sweeps(each)}
    for run in (state.judge(each, jobs.lives) for each in files.values()):
        if (reason := why_busy(run, jobs)) is not None:
            print_line(f"{display_path(run.run_dir.path)} is left alone: {reason}")
            is_idle = False
        elif age_s(run.run_dir) >= request.older_than_s:
            leftovers += list(_of_idle(run, needed, is_point=run.run_dir.path in points))
    if request.runs is None:
        gone = [each.run_dir for each in leftovers if each.is_run and each.run_dir is not None]
        for each in sorted(filter(Path.is_dir, roots)):
            # Another root may have runs that this one does not know.
            leftovers += unlinked.find(each, request.older_than_s, gone, is_idle and each == root)
    return leftovers, files


def _named_checkpoints(runs: Sequence[RunDir]) -> set[Path] | None:
    """Return what all runs' specs name; None if one is unreadable: it may name any checkpoint."""
    try:
        return leftovers.named_by_specs(list(runs))
    except (UserError, OSError, ValueError, TypeError, KeyError) as error:
        text = str(error).partition("\n")[0]
        print_line(f"all checkpoints are left alone: another run may need them, and {text}")
        return None


def _of_idle(run: RunState, needed: set[Path] | None, is_point: bool) -> Iterator[Leftover]:
    """Yield what is left over in a run that has no job and no process.

    is_point: a sweep has it, so it may start although it never did.
    """
    # Not a result that would be written: resume, cancel or the next start may still write another.
    run_dir, result = run.run_dir, run.files.result
    if result is not None:
        is_complete = result.status == "completed"
        for each in leftovers.of_run(run_dir, is_complete, needed or set()):
            if needed is not None or not each.is_checkpoint:
                yield each
        return
    is_old = age_s(run_dir) >= unlinked.MIN_AGE_S
    if is_old and not (is_point or lookup.has_begun(run_dir)):
        yield Leftover(run_dir.path, "a run that never started", run_dir, is_run=True)


def age_s(run_dir: RunDir) -> float:
    """Return the seconds since a run was frozen, resumed or ended, by the times of its files."""
    times = [0.0]
    for path in (run_dir.path, run_dir.spec, run_dir.result, run_dir.attempts, run_dir.submission):
        shared_files.ask_again(path)
        with contextlib.suppress(FileNotFoundError):
            times.append(path.stat().st_mtime)
    return time.time() - max(times)


@dataclass(frozen=True)
class Squeue:
    """The jobs of runs, and all of this user, from one answer of squeue.

    targets: to what the batch scripts of the user's living jobs lead, and the points of sweeps.
    unclear: a job of the kit of which Slurm does not show that.
    """

    is_known: bool
    lives: Mapping[str, Life]
    targets: frozenset[Path]
    unclear: str | None

    @classmethod
    def of(cls, files: Sequence[RunFiles]) -> Squeue:
        """Ask Slurm once."""
        named = [job for each in files for job in each.jobs]
        queue = job_list.queue(job.uid for job in named if job.uid is not None)
        lives = queue.lives_of(named, is_end_wanted=False) if named else {}
        known_targets = {job_id: run_jobs.target_of(queue, job_id) for job_id in queue.targets}
        unclear = next((job_id for job_id, path in known_targets.items() if path is None), None)
        targets = {path for path in known_targets.values() if path is not None}
        points = {each.resolve() for path in targets for each in files_in(path / "points", "*")}
        return cls(queue.jobs is not None, lives, frozenset(targets | points), unclear)


def why_busy(run: RunState, jobs: Squeue) -> str | None:
    """Return why a run must not be changed now; None for one without a job or process."""
    run_dir = run.run_dir
    if run_dir.path.stat().st_uid != os.geteuid():
        return "it belongs to another user"
    if run.files.problem is not None:
        return run.files.problem.partition("\n")[0]
    if run.process is not None:
        return f"it runs on {run.process.host}"
    if not jobs.is_known and run.files.submitted is not None:
        return "Slurm does not answer whether its job still runs"
    if any(life.is_alive for life in run.lives.values()) or run_dir.path in jobs.targets:
        return "it is queued or running"
    if jobs.unclear is not None:
        return f"job {jobs.unclear} may run it: Slurm shows no arguments of its batch script"
    return next((life.why for life in run.lives.values() if life.is_alive is None), None)


def delete(leftovers: Sequence[Leftover], files: Mapping[RunDir, RunFiles]) -> int:
    """Delete; return how many could not be deleted, each with a printed line.

    files: of the runs before Slurm was asked.
    """
    failed = 0
    for each in leftovers:
        try:
            if each.run_dir is None:
                _delete_shared(each.path)
            else:
                with hold_claim(each.run_dir):
                    if state.read_files(each.run_dir) != files[each.run_dir]:
                        raise UserError("the run was started meanwhile")
                    _delete_of_run(each, each.run_dir)
        except (OSError, UserError) as error:
            failed += 1
            print_line(f"{display_path(each.path)} stays: {str(error).partition(chr(10))[0]}")
    return failed


def _delete_of_run(each: Leftover, run_dir: RunDir) -> None:
    """Delete what belongs to a run, whose claim this process has. Raises: OSError."""
    if not each.is_run:
        _delete(each.path, each.path.parent / f"{TEMPORARY_PREFIX}{secrets.token_hex(4)}")
        return
    root = lookup.own_root(run_dir)
    _delete(run_dir.path, root / f"{unlinked.DELETED}{run_dir.run_id}")
    with contextlib.suppress(OSError):  # other runs have the name
        run_dir.path.parent.rmdir()


def _delete_shared(path: Path) -> None:
    """Delete a link whose target is gone, or a copy of code that no run has."""
    if path.is_symlink():
        others = shared_files.files_in(path.parent, "*")
        siblings = [each for each in others if shared_files.is_file(each / "spec.json")]
        shared_files.ask_again(path)
        if shared_files.exists(path.resolve()):
            return  # a new run has it now
        path.unlink()
        if path.name == "latest" and siblings:
            relink(path, siblings[-1].name)
        with contextlib.suppress(OSError):
            path.parent.rmdir()
        return
    aside = path.parent / f"{unlinked.DELETED}{path.name.removeprefix(unlinked.DELETED)}"
    if path != aside:
        os.rename(path, aside)
    # A submit may have taken the copy after it was looked at: code_snapshot.take() touches it, and
    # then the run directory has its link.
    root = path.parent.parent
    shared_files.ask_again(aside)
    is_fresh = time.time() - aside.lstat().st_mtime < unlinked.MIN_AGE_S
    linked = unlinked.linked_code(root) if path.parent.name == unlinked.CODE else set()
    if path != aside and (is_fresh or linked is None or path.name in linked):
        with contextlib.suppress(OSError):  # the submit has made it again
            os.rename(aside, path)
            return
    _remove(aside)


def _delete(path: Path, aside: Path) -> None:
    """Delete a file, or a folder after a rename."""
    if path.is_dir() and not path.is_symlink():
        os.rename(path, aside)
        _remove(aside)
    else:
        path.unlink()


def _remove(path: Path) -> None:
    if path.is_dir():
        code_snapshot.delete(path)  # frozen code is read-only
    else:
        path.unlink()


def format_size(size: float) -> str:
    """Return `1.2 GiB`."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.3g} {units[0]}" if size < 100 else f"{size:.0f} {units[0]}"
