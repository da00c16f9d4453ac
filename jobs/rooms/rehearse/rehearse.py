"""The command rehearse: whether a training survives a stop, and ends the same."""

import argparse
import json
import re
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from ...commands import arguments
from ...config import load
from ...errors import FailedError, UserError
from ...runs import frozen_spec, lookup
from . import controls, final_state, judge, metrics, traces
from .scenarios import MIDDLE, UNDISTURBED, Rehearsal, Tried
from .subjects import CommandSubject, SpecSubject, Subject, patterns_of
from .verdict import Verdict, junit_of_error

RANKS = 2
GRACE_S = 30.0
LIMIT_S = 300.0
MAKE = ("", "CONFIG RUN SET FLAGS")
TAKES_A_COMMAND = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of rehearse."""
    parser.usage = (
        "%(prog)s [options] CONFIG [KEY=VALUE ...] | RUN\n"
        "       %(prog)s [options] -- python SCRIPT [WORD ...]"
    )
    parser.add_argument("what", nargs="?", metavar="CONFIG|RUN", help="a spec, or a run of the kit")
    arguments.add_overrides(parser, "train.max_steps=20")
    add = parser.add_argument
    add("--ranks", type=int, default=RANKS, metavar="N", help=f"how many ranks ({RANKS})")
    add("--resize", type=int, metavar="N", help="also stop, and continue with N ranks")
    help_of_it = "try this scenario alone, such as middle or save; may be given again"
    add("--only", action="append", default=[], metavar="WORD", help=help_of_it)
    help_of_it = "more words for later starts; {newest:PATTERN} is the newest such file, if any"
    add("--again", default="", metavar="WORDS", help=help_of_it)
    help_of_it = "files of the final state; else the state files that were written last"
    add("--final", metavar="PATTERN", help=help_of_it)
    help_of_it = "a file or folder that git ignores: the copy has a link to it"
    add("--link", action="append", default=[], type=Path, metavar="PATH", help=help_of_it)
    help_of_it = f"seconds from SIGTERM to SIGKILL ({GRACE_S:.0f})"
    add("--grace", type=float, default=GRACE_S, metavar="S", help=help_of_it)
    help_of_it = f"seconds that one start may take ({LIMIT_S:.0f})"
    add("--limit", type=float, default=LIMIT_S, metavar="S", help=help_of_it)
    add("--self-test", action="store_true", help="spoil exact trainings; each verdict must be no")
    add("--keep", type=arguments.path, metavar="DIR", help="keep all that was written")
    help_of_it = "also write the verdict as JUnit XML"
    add("--junit", type=arguments.path, metavar="FILE", help=help_of_it)
    arguments.add_json(parser)


def command(args: argparse.Namespace) -> int:
    """Print the verdict; returns 1 if an answer is no."""
    words = getattr(args, "words", [])
    if bool(words) + (args.what is not None) + args.self_test != 1:
        raise UserError(
            "give a spec, a run, or a command behind --, as in\n"
            "    rehearse --ranks 2 -- python train.py --epochs 2"
        )
    _check(args)
    folder = _folder(args.keep)
    # A job of CI that is cancelled gets SIGTERM: nothing of the training may stay.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if args.self_test:
            return self_test(folder, (args.grace, args.limit))
        with closing(_subject(args, words, folder)) as subject:
            found = rehearse(subject, args)
    except (UserError, FailedError) as error:
        if args.junit is not None:
            args.junit.write_text(junit_of_error(str(error)), encoding="utf-8")
        raise
    finally:
        if args.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found.json(), indent=2) if args.json else found.table())
    if args.junit is not None:
        args.junit.write_text(found.junit(), encoding="utf-8")
    return 0 if found.is_good else 1


def self_test(folder: Path, limits: tuple[float, float]) -> int:
    """Print what the verdict is on exact trainings that are spoiled; returns 1 if one is wrong."""
    wrong = 0
    for name, subject in controls.subjects(folder):
        if isinstance(subject, str):
            print(f"{name:13} not tried    {subject}")
            continue
        with closing(subject):
            for spoil, found, is_right in controls.control(subject, limits):
                print(f"{name:13} {spoil or 'not spoiled':12} {found}", flush=True)
                wrong += not is_right
    print(f"{wrong} wrong" if wrong else "each verdict is right")
    return 1 if wrong else 0


def _check(args: argparse.Namespace) -> None:
    """Refuse options that cannot be meant. Raises: UserError."""
    patterns = [("--final", args.final)] if args.final is not None else []
    words = _again(args)
    patterns += [("--again", each) for each in patterns_of(words)]
    if any(re.search(r"\{(?!newest:|if:)\w*:", word) for word in words):
        raise UserError(
            f"--again {args.again}: the braces are {{newest:PATTERN}} or {{if:PATTERN}}"
        )
    for name, pattern in patterns:
        if not pattern or Path(pattern).is_absolute():
            raise UserError(f"{name} {pattern}: a pattern relative to the working directory")
    if missing := [each for each in args.link if not each.exists()]:
        raise UserError(f"--link {missing[0]}: no such file")
    if args.junit is not None and not args.junit.parent.is_dir():
        raise UserError(f"--junit {args.junit}: {args.junit.parent} is no folder")
    for name, path in (("--junit", args.junit), ("--keep", args.keep)):
        if path is not None and path.exists() and path.is_dir() != (name == "--keep"):
            raise UserError(f"{name} {path}: {'a file' if path.is_file() else 'a folder'}")
    for name in ("ranks", "resize"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise UserError(f"--{name} {getattr(args, name)}: at least 1")
    for name in ("grace", "limit"):
        if not getattr(args, name) > 0:
            raise UserError(f"--{name} {getattr(args, name):g}: more than 0 s")


def _again(args: argparse.Namespace) -> list[str]:
    """Return the words for the later starts. Raises: UserError."""
    try:
        return shlex.split(args.again)
    except ValueError as error:
        raise UserError(f"--again {args.again}: {error}") from None


def _folder(keep: Path | None) -> Path:
    """Return a new folder. Raises: UserError."""
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="rehearse-")).resolve()
    if keep.exists() and any(keep.iterdir()):
        raise UserError(
            f"--keep {keep}: the folder is not empty\n  hint: remove it, or name another one"
        )
    keep.mkdir(parents=True, exist_ok=True)
    return keep.resolve()


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
        again, links = _again(args), args.link
        return CommandSubject(
            words=words, again=again, ranks=args.ranks, folder=folder, links=links
        )
    overrides, cwd = arguments.overrides_of(args), Path.cwd()
    if args.what.startswith("python"):
        raise UserError(f"a command stands behind --, as in\n    rehearse -- {args.what} train.py")
    if Path(args.what).suffix in (".yaml", ".yml"):
        config = arguments.path(args.what).resolve()
        loaded = load.load(config, overrides)
    else:
        run_dir = lookup.find(args.what)
        config, cwd = run_dir.spec_yaml, folder / "source"
        # Elsewhere, as git may ignore the folder of the runs, and what is ignored is not frozen.
        shutil.copytree(run_dir.code.resolve(), cwd, symlinks=True)
        loaded = frozen_spec.reload(run_dir, overrides)
    spec = loaded.spec
    few = [f"slurm.nodes={args.ranks}", "slurm.spare_nodes=0", "launch.nproc_per_node=1"]
    if spec.launch.is_trainer:
        few += FEW_STEPS
        few.append(f"train.warmup_steps={min(spec.train.warmup_steps, MOST_WARMUP_STEPS)}")
    few += loaded.overrides
    return SpecSubject(
        config=config, overrides=few, ranks=args.ranks, folder=folder, started_in=cwd
    )


def rehearse(subject: Subject, args: argparse.Namespace) -> Verdict:
    """Run all scenarios and return the verdict."""
    begun = time.monotonic()
    rehearsal = Rehearsal(subject, (args.grace, args.limit), args.final)
    first, again = rehearsal.undisturbed()
    runs = [*rehearsal.disturbed(first, args.resize, args.only)]
    tried = [run for run in runs if not run.untried]
    if not tried:
        raise UserError(f"no harm could be tried; {runs[0].scenario.name}: {runs[0].untried}")
    homes = {run.scenario.name: run.home for run in [again, *tried]}
    differences = final_state.compare(subject.python, first.final, first.home, homes)
    varying = differences[UNDISTURBED[1]]
    repeats, judgements = _not_repeated(first, again, varying), []
    for run in tried:
        difference = differences[run.scenario.name].without(varying.values)
        if run.scenario.ranks or repeats:  # other ranks give other bits
            difference = final_state.Difference()
        judgements.append(judge.Judgement(run, first, difference))
    middle = next((each for each in judgements if each.run.scenario.name == MIDDLE), None)
    for each in judgements:
        each.middle = middle
    finished = [each.run for each in judgements if each.is_comparable]
    left_out = f"not tried, for --only: harms without {' or '.join(args.only)} in their name"
    return Verdict(
        reference=first,
        judgements=judgements,
        untried={run.scenario.name: run.untried for run in runs if run.untried},
        repeats=repeats,
        metrics=metrics.compare(first, again, finished),
        seconds=time.monotonic() - begun,
        notes=[*_notes([first, again, *tried], varying), *([left_out] if args.only else [])],
    )


def _not_repeated(first: Tried, again: Tried, varying: final_state.Difference) -> str:
    """Return how the second undisturbed run differs; empty if it ends with the same bits."""
    if varying.missing:
        raise UserError(
            f"the second undisturbed run wrote no {varying.missing}\n"
            "  hint: --final PATTERN names the files of the final state, such as 'out/*/final.pt'"
        )
    if not varying.tensors:
        return ""
    since = judge.Judgement(again, first, varying).since
    return f"differs{since}: {varying}" if since else str(varying)


def _notes(runs: Sequence[Tried], varying: final_state.Difference) -> list[str]:
    outside = sorted({path for run in runs for each in run.processes for path in each.outside})
    left = sorted({each for run in runs for start in run.starts for each in start.left})
    notes = [f"writes outside of its directory: {path}" for path in outside]
    if traces.has_one_order(runs[0].course().steps):
        notes.append(
            "each epoch has the samples in the same order: sampler.set_epoch(epoch) is not called, "
            "or the data are not shuffled"
        )
    notes += [f"left a process behind, which was killed: {each}" for each in left]
    if varying.values:
        shown = ", ".join(sorted(varying.values)[:3])
        notes.append(f"not compared, as the undisturbed runs differ in it: {shown}")
    return notes
