"""The command compare: whether two runs ended with equal bits, and if not, where and likely why."""

import argparse
import contextlib
import filecmp
import json
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ...base import answer, files
from ...base.console import quantity
from ...base.errors import UserError
from ...commands import arguments
from ...contract import records
from ...contract.problems import dotted
from ...contract.records.frozen import Provenance
from ...contract.records.training import Result
from ...contract.rundir import RunDir
from ...contract.spec import SECTIONS, Spec
from ...runs import lookup, state
from ...runs.frozen_spec import FIXED, differences, is_free

MAKE = ("RUN WITH", "FLAGS")
UNFIT, NOT_COMPARED = "can be compared", "not compared"
FIRST = "metrics.jsonl, first at "
FILES = "checkpoints/"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=arguments.RUN)
    parser.add_argument("reference", metavar="REFERENCE", help="a run without interruption")


def command(args: argparse.Namespace) -> int:
    run_dir, reference = lookup.find(args.run), lookup.find(args.reference)
    differences = compare(run_dir, reference)
    shown = verdict(differences) if differences else summary(run_dir, reference)
    is_equal = None if shown == NOT_COMPARED else not differences
    if not answer.give(equal=is_equal, verdict=shown, differences=differences):
        print("\n".join([shown, *differences]))
    return 0 if is_equal else 1


def verdict(differences: Sequence[str]) -> str:
    """Return in a line how two runs differ, from their `differences`."""
    keys = [each.partition(":")[0] for each in differences]
    if differences[0].endswith(UNFIT):
        return NOT_COMPARED
    of_spec = [key for key in keys if key.split(".")[0] in (*SECTIONS, "setup")]
    since = [key.removeprefix(FIRST) for key in keys if key.startswith(FIRST)]
    is_other = any(key == "weights_sha256" or key.startswith(FILES) for key in keys)
    what = "other weights" if is_other else "equal weights, but not all else"
    where = f", metrics differ from {since[0]} on" if since else ""
    specs = f"the specs differ in {', '.join(of_spec)}" if of_spec else "with equal specs"
    return f"different: {what}{where}; {specs}"


def compare(run: RunDir, reference: RunDir) -> list[str]:
    """Return a run's differences from the reference, one line each; empty if bitwise equal."""
    ours, theirs = _result(run), _result(reference)
    unfit = [*_unfit(run, ours, theirs), *_unfit(reference, theirs, ours)]
    if unfit or ours is None or theirs is None:
        return unfit
    outputs = _files if ours.weights_sha256 is None else _metrics  # None: of a user's script
    differences = [*_results(ours, theirs), *outputs(run, reference)]
    return [*_specs(run, reference), *differences] if differences else []


def summary(run: RunDir, reference: RunDir) -> str:
    """Return the line for two bitwise equal runs: number of steps, digest of the weights."""
    result = _result(run)
    if result is None or result.weights_sha256 is None:
        saved = quantity(len(_saved(run.checkpoints)), "file")
        return f"equal: {saved} in checkpoints byte for byte; other files are not compared"
    steps = quantity(result.global_step or 0, "step")
    begin = _begin(run, reference)
    metrics = f"; metrics after step {begin}, with which one of them began" if begin else ""
    return f"bitwise equal: {steps}, weights {result.weights_sha256[:16]}{metrics}"


def _begin(*runs: RunDir) -> int:
    """Return the step after which each run has metrics: one may have begun from another run."""
    known = [records.read(Provenance, run.provenance) for run in runs]
    return max(each.origin.step if each and each.origin else 0 for each in known)


def _result(run: RunDir) -> Result | None:
    run_files = state.read(run)
    if run_files.files.problem is not None:
        raise UserError(run_files.files.problem)
    return run_files.result


def _unfit(run: RunDir, result: Result | None, other: Result | None) -> Iterator[str]:
    status = "not complete yet" if result is None else result.status
    if result is None or status != "completed":
        yield f"{run.path}: is {status}; only completed runs {UNFIT}"
    elif result.weights_sha256 is None and other and other.weights_sha256 is not None:
        yield f"{run.path}: is of a script; only two of scripts, or two of the trainer, {UNFIT}"
    elif result.weights_sha256 is None and not _saved(run.checkpoints):
        where = "KIT_CHECKPOINT_DIR (checkpoints)"
        yield f"{run.path}: the script saved nothing in {where}; only files there {UNFIT}"


def _saved(folder: Path, above: str = "") -> dict[str, Path]:
    """Return the files that a user's script has saved in a folder, by their names below it."""
    found: dict[str, Path] = {}
    for path in (folder / name for name in files.names_in(folder)):
        if files.is_file(path):
            found[above + path.name] = path
        elif not path.is_symlink():
            found |= _saved(path, f"{above}{path.name}/")
    return found


def _files(run: RunDir, reference: RunDir) -> Iterator[str]:
    """Yield the files of two scripts' runs that differ: a file may also hold times or paths."""
    ours, theirs = _saved(run.checkpoints), _saved(reference.checkpoints)
    for name in sorted({*ours, *theirs}):
        if not (name in ours and name in theirs):
            yield f"{FILES}{name}: only of {(run if name in ours else reference).path}"
        elif not filecmp.cmp(ours[name], theirs[name], shallow=False):
            yield f"{FILES}{name}: other bytes"


def _specs(run: RunDir, reference: RunDir) -> Iterator[str]:
    """Yield the differing keys on which results depend: the likely reason of all other ones."""
    if not (files.is_file(run.spec) and files.is_file(reference.spec)):
        return
    ours, theirs = (Spec.read(of.spec) for of in (run, reference))
    for path, (value, expected) in differences(ours, theirs).items():
        if path[0] not in FIXED and not is_free(path):
            yield from _difference(dotted(path), value, expected)


def _results(ours: Result, theirs: Result) -> Iterator[str]:
    for key in ("global_step", "weights_sha256", "optimizer_sha256", "best"):
        yield from _difference(key, *(records.encode(getattr(x, key)) for x in (ours, theirs)))
    mine, other = (result.metrics or {} for result in (ours, theirs))
    for name in sorted({*mine, *other}):
        yield from _difference(f"metrics.{name}", mine.get(name), other.get(name))
    for result, which in ((ours, "the run"), (theirs, "the reference")):
        if result.weights_sha256 is not None and result.exactness != "bitwise":
            reason = result.exactness_reason
            yield f"exactness of {which} is {result.exactness}, not bitwise: {reason}"


def _difference(key: str, ours: Any, theirs: Any) -> Iterator[str]:
    """Compare as text, so that NaN equals NaN and -0.0 does not equal 0.0."""
    written, expected = json.dumps(ours), json.dumps(theirs)
    if written != expected:
        yield f"{key}: {written} is not {expected}"


def _metrics(run: RunDir, reference: RunDir) -> Iterator[str]:
    """Yield the first line where `metrics.jsonl` differs, byte for byte, of the steps of both."""
    begin = _begin(run, reference)
    lines = zip_longest(_lines(run, begin), _lines(reference, begin), fillvalue=b"")
    for number, (ours, theirs) in enumerate(lines, 1):
        if ours != theirs:
            step = _step(theirs or ours)
            where = f"line {number}" if step is None else f"step {step}"
            yield f"{FIRST}{where}: {_shown(ours)} is not {_shown(theirs)}"
            return


def _lines(run: RunDir, begin: int) -> Iterator[bytes]:
    """Yield the lines of a run without those of steps up to `begin`."""
    with contextlib.suppress(FileNotFoundError):
        for line in files.lines_of(run.metrics):
            if not begin or (_step(line) or begin + 1) > begin:
                yield line


def _step(line: bytes) -> int | None:
    try:
        step = json.loads(line)["step"]
    except (ValueError, TypeError, KeyError, RecursionError):  # a line that was cut off
        return None
    return step if isinstance(step, int) else None


def _shown(line: bytes) -> str:
    return line.decode(errors="backslashreplace").rstrip("\n") or "nothing"
