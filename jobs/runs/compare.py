"""Whether an interrupted run ended bit for bit like one that nobody touched. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from jobs.console import counted
from jobs.problems import dotted, printable
from jobs.rundir import RunDir, read_json
from jobs.runs.spec_changes import FIXED, differences, is_free
from jobs.spec import Spec


def compare(run: RunDir, untouched: RunDir) -> list[str]:
    """How a run differs from the untouched one, in words; empty where they are bitwise equal."""
    ours, theirs = _result(run), _result(untouched)
    unfit = [*_unfit(run, ours), *_unfit(untouched, theirs)]
    if unfit:
        return unfit
    found = [*_results(ours, theirs), *_metrics(run, untouched)]
    return [*_specs(run, untouched), *found] if found else []


def summary(run: RunDir) -> str:
    """What two runs without a difference have in common, on one line."""
    result = _result(run)
    digest = str(result["weights_sha256"])
    return f"bitwise equal: {counted(result['global_step'], 'step')}, weights {digest[:16]}"


def _result(run: RunDir) -> dict[str, Any]:
    return dict(read_json(run.result) or {})


def _unfit(run: RunDir, result: dict[str, Any]) -> Iterator[str]:
    """Why a run cannot be compared."""
    status = result.get("status", "not complete yet")
    if status != "completed":
        yield f"{run.path}: is {status}; only completed runs can be compared"
    elif "weights_sha256" not in result:
        yield f"{run.path}: has no weights_sha256; only the trainer's runs can be compared"


def _specs(run: RunDir, untouched: RunDir) -> Iterator[str]:
    """What differs of the keys that results depend on: the likely reason for all the rest."""
    if not (run.spec.is_file() and untouched.spec.is_file()):
        return
    ours, theirs = (Spec.read(of.spec) for of in (run, untouched))
    for path, (value, expected) in differences(ours, theirs).items():
        if path[0] not in FIXED and not is_free(path):
            yield from _difference(dotted(path), value, expected)


def _results(ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[str]:
    for key in ("global_step", "weights_sha256", "optimizer_sha256", "best"):
        yield from _difference(key, ours.get(key), theirs.get(key))
    measured, expected = ours.get("metrics") or {}, theirs.get("metrics") or {}
    for key in sorted({*measured, *expected}):
        yield from _difference(f"metrics.{key}", measured.get(key), expected.get(key))
    for result, which in ((ours, "the run"), (theirs, "the untouched run")):
        if result.get("exactness") != "bitwise":
            reason = result.get("exactness_reason")
            yield f"exactness of {which} is {result.get('exactness')}, not bitwise: {reason}"


def _difference(key: str, ours: Any, theirs: Any) -> Iterator[str]:
    """As text, so that NaN equals NaN and -0.0 does not equal 0.0."""
    written, expected = json.dumps(ours), json.dumps(theirs)
    if written != expected:
        yield f"{key}: {written} is not {expected}"


def _metrics(run: RunDir, untouched: RunDir) -> Iterator[str]:
    """The first line in which `metrics.jsonl` differs, byte for byte."""
    lines = zip_longest(_lines(run), _lines(untouched), fillvalue=b"")
    for number, (ours, theirs) in enumerate(lines, 1):
        if ours != theirs:
            step = _step(theirs or ours)
            where = f"line {number}" if step is None else f"step {step}"
            yield f"metrics.jsonl, first at {where}: {_shown(ours)} is not {_shown(theirs)}"
            return


def _lines(run: RunDir) -> list[bytes]:
    try:
        return run.metrics.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []


def _step(line: bytes) -> Any:
    try:
        return json.loads(line)["step"]
    except (ValueError, TypeError, KeyError):  # a line that was cut off
        return None


def _shown(line: bytes) -> str:
    return printable(line.decode(errors="backslashreplace").rstrip("\n")) or "nothing"
