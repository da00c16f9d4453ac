"""The command rehearse: whether a training survives a stop, and ends the same."""

import argparse
import shlex
import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ...base import answer
from ...base.errors import UserError
from ...commands import arguments
from ...config import load
from ...runs import code_snapshot, frozen_spec, lookup
from . import repro
from .final_state import Difference
from .judge import Scenario, Tried, compare
from .scenarios import Rehearsal
from .subjects import EXAMPLE, PATTERN, CommandSubject, SpecSubject, Subject
from .verdict import Verdict

RANKS = 2
STOPPED = "stopped by Ctrl-C"
MAKE = ("", "CONFIG RUN SET FLAGS CMD")
TAKES_A_COMMAND = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "%(prog)s [options] CONFIG [KEY=VALUE ...] | RUN\n"
        "       %(prog)s [options] -- python SCRIPT [WORD ...]"
    )
    parser.add_argument("what", nargs="?", metavar="CONFIG|RUN", help="a spec, or a run of the kit")
    arguments.add_overrides(parser, "train.max_steps=20")
    add = parser.add_argument
    add("--ranks", type=int, metavar="N", help="ranks (2, or 1 without a process group)")
    add("--resize", type=int, metavar="N", help="also stop, and continue with N ranks")
    add("--only", action="append", default=[], metavar="WORD", help="harms with this word alone")
    add("--again", default="", metavar="WORDS", help="for later starts, with {newest:PATTERN}")
    add("--final", metavar="PATTERN", help="files of the final state; else those written last")
    help_of_it = "a file or folder that git ignores, or a path outside: it may be changed"
    add("--link", action="append", default=[], type=Path, metavar="PATH", help=help_of_it)
    add("--grace", type=float, default=30.0, metavar="S", help="from SIGTERM to SIGKILL (30)")
    add("--limit", type=float, default=300.0, metavar="S", help="seconds of a start (300)")
    add("--keep", type=arguments.path, metavar="DIR", help="keep all that was written")


def command(args: argparse.Namespace) -> int:
    """Print the verdict; returns 1 if an answer is no. Raises: UserError."""
    words = args.words or []
    if bool(words) == (args.what is not None):
        raise UserError("give a spec, a run, or a command behind --", f"as in {EXAMPLE}")
    written = args.again
    try:
        args.again = shlex.split(written)
    except ValueError as error:
        raise UserError(f"--again {written}: {error}") from None
    patterns = [("--again", x["pattern"]) for x in map(PATTERN.search, args.again) if x]
    patterns += [("--final", args.final)] if args.final is not None else []
    for name, pattern in patterns:
        if not pattern or Path(pattern).is_absolute():
            raise UserError(f"{name} {pattern}: a pattern relative to the working directory")
    if missing := [each for each in args.link if not each.exists()]:
        raise UserError(f"--link {missing[0]}: no such file")
    for name in ("ranks", "resize", "grace", "limit"):
        if (value := getattr(args, name)) is not None and not value > 0:
            raise UserError(f"--{name} {value:g}: more than 0")
    keep = args.keep
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise UserError(f"--keep {keep}: no empty folder", "remove it, or name another one")
    folder = (args.keep or Path(tempfile.mkdtemp(prefix="rehearse-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    # A job of CI that is cancelled gets SIGTERM: nothing of the training may stay.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        found = rehearse(_subject(args, words, folder), args)
    finally:
        if args.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    if not answer.give(**found.json()):
        print(found.table(), flush=True)
    if STOPPED in found.untried.values():
        raise KeyboardInterrupt  # as it would have ended without the verdict
    return 0 if found.is_good else 1


# What makes a training of the kit small; the user's own KEY=VALUE come after them. Its ranks agree
# on a stop after each step: every 50 ms, as otherwise, may be after the last of few fast steps.
FEW_STEPS = (
    "launch.stop_check_steps=1",
    *("train.max_steps=20", "train.eval_every_steps=8", "train.eval_every_epochs=null"),
    *("checkpoint.every_steps=6", "checkpoint.every_epochs=null", "log.every_steps=2"),
)
MOST_WARMUP_STEPS = 5


def _subject(args: argparse.Namespace, words: Sequence[str], folder: Path) -> Subject:
    """Return a command, or a spec, or that of a run, made small. Raises: UserError."""
    if words:
        return CommandSubject(
            words=words, again=args.again, ranks=args.ranks or RANKS, folder=folder, links=args.link
        )
    overrides, cwd = arguments.overrides_of(args), Path.cwd()
    if Path(args.what).suffix in (".yaml", ".yml"):
        config = arguments.path(args.what).resolve()
        loaded = load.load(config, overrides)
    else:
        run_dir = lookup.find(args.what)
        config, cwd = run_dir.spec_yaml, folder / "source"
        # Elsewhere, as git may ignore the folder of the runs, and what is ignored is not frozen.
        code_snapshot.copy(code_snapshot.files_of(run_dir.code.resolve()), cwd)
        loaded = frozen_spec.reload(run_dir, overrides)
        for name in filter(lambda x: not (cwd / x).exists(), sorted(loaded.spec.launch.inputs)):
            (link := cwd / name).parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to((run_dir.work / name).resolve())
    spec = loaded.spec
    ranks = args.ranks or RANKS
    few = [f"slurm.nodes={ranks}", "slurm.spare_nodes=0", "launch.nproc_per_node=1"]
    if spec.launch.is_trainer:
        few += FEW_STEPS
        few.append(f"train.warmup_steps={min(spec.train.warmup_steps, MOST_WARMUP_STEPS)}")
    # Nothing of it for others to see.
    few += [*loaded.overrides, "runs_root=null", "hooks.checkpoint=null", "hooks.end=null"]
    few += ["log.trackers=[]"] if spec.launch.is_trainer else []
    return SpecSubject(
        config=config,
        overrides=few,
        ranks=ranks,
        folder=folder,
        links=args.link,
        started_in=cwd,
        may_mount=bool(spec.launch.command_prefix),
    )


def rehearse(subject: Subject, args: argparse.Namespace) -> Verdict:
    is_command, limits = isinstance(subject, CommandSubject), (args.grace, args.limit)
    is_kept, is_any_ranks = is_command and args.keep is not None, is_command and args.ranks is None
    rehearsal = Rehearsal(subject, limits, args.final, is_any_ranks, is_kept)
    first, again = rehearsal.undisturbed()
    runs: list[Tried] = []
    try:
        runs.extend(rehearsal.disturbed(first, again, args.resize, args.only))  # each as it ends
    except KeyboardInterrupt:
        if all(run.untried for run in runs):
            raise
        left = rehearsal.wanted.difference(run.name for run in runs)
        runs += [Tried(Scenario(name, untried=STOPPED)) for name in sorted(left)]
    tried = [run for run in runs if not run.untried]
    if not tried:
        raise UserError(f"no harm could be tried; {runs[0].name}: {runs[0].untried}")
    compare(subject.python, first, tried, again)
    varying = again.difference.values
    again.difference = again.difference.without(varying)
    repeats = again.how_it_differs
    for run in tried:
        is_compared = not (run.scenario.ranks or repeats)  # other ranks give other bits
        run.difference = run.difference.without(varying) if is_compared else Difference()
    processes = [process for run in (first, again, *tried) for process in run.processes]
    full = dict.fromkeys(process.full for process in processes if process.full)
    notes = [*rehearsal.notes, *(f"not each kill in a save is tried: {why}" for why in full)]
    if varying:
        shown = ", ".join(sorted(varying)[:3])
        notes.append(f"not compared, as the undisturbed runs differ in it: {shown}")
    if subject.restrict is None:
        notes.append("held to its copy in Python only: no Landlock here, or launch.command_prefix")
    verdict = Verdict(
        reference=first,
        tried=tried,
        untried={run.name: run.untried for run in runs if run.untried},
        repeats=repeats,
        is_hash_ordered=rehearsal.is_hash_ordered,
        uncompared=again.difference.uncompared,
        notes=notes,
    )
    if is_kept and isinstance(subject, CommandSubject):
        verdict.notes = [*verdict.notes, *repro.write(subject, verdict)]
    return verdict
