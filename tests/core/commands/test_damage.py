"""Whatever is wrong in a file of a run, a command says it in a line and harms no other run.

For each file of a run that is complete, held or queued, and each damage of it: no traceback, no
exit code but 0, 1 and 2, and a list still shows the other run.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.base.files import append_jsonl, relink
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.runs import lookup
from tests.core import run_files
from tests.core.run_files import make_checkpoint, tree, write_json

LOOKING = [["status"], ["why", "RUN"], ["logs", "RUN"]]
CHANGING = [["resume", "RUN"], ["cancel", "RUN"]]


def without_last(path):
    """Cut a file in the middle, as a full disk does."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def without_keys(path):
    """Leave out all keys but the last of the first object."""
    first, newline, rest = path.read_bytes().partition(b"\n" if path.suffix == ".jsonl" else b"\0")
    try:
        value = json.loads(first)
    except ValueError:
        return
    kept = dict([*value.items()][-1:]) if isinstance(value, dict) else value
    path.write_bytes(json.dumps(kept).encode() + newline + rest)


DAMAGES = {
    "missing": Path.unlink,
    "cut": without_last,
    "few keys": without_keys,
    "text": lambda path: path.write_bytes(b"\x1b]0;x\xff\x07\n"),
}


def trained(run: RunDir, is_held: bool) -> None:
    """Write all files of a run whose only attempt ended."""
    attempt = run_files.opened(run, job_id="7", code="x")
    attempt.rank_log(0).write_text("step 1\nstep 2\n")
    run_files.node(attempt, 0, (2.0, "SIGTERM"), torchrun_exit=int(is_held))
    append_jsonl(run.timeline("rank-00000"), {"t": 2.0, "event": "first_step", "attempt": 1})
    append_jsonl(run.metrics, {"step": 2, "epoch": 1, "eval_loss": 0.5})
    write_json(run.progress, {"step": 2, "total": 2, "metrics": {"eval_loss": 0.5}})
    append_jsonl(run.changes, {"time": 1.0, "changes": {"train.lr": [0.1, 0.2]}})
    make_checkpoint(run, 2)
    reached = {"global_step": 2, "weights_sha256": "ab", "metrics": {"eval_loss": 0.5}}
    if is_held:
        run_files.failed(attempt, 0, 2.0, kind="hang")
        write_json(attempt.hang, {"rank": 0, "error": "x", "unresponsive": [1], "hosts": ["a"]})
        run_files.recorded(run, {"kind": "hang"}, job_id="7", decision="hold", cause="hang")
        write_json(run.result, {"status": "held", "reason": "x"})
        write_json(run.owner, run_files.claim(job_id="7"))
        write_json(run.successor, {"job_id": "8", "after": "7"})
    else:
        write_json(attempt.outcome, {"status": "completed", **reached})
        run_files.recorded(run, job_id="7", decision="done", cause="completed")
        write_json(run.result, {"status": "completed", **reached})


@pytest.fixture(params=["complete", "held", "queued"])
def run(request, slurm, submitted, here):
    """A run beside another one, `other`, which a damage of it must not harm."""
    shutil.copytree(submitted.path, here / "runs/other/20260101-000000-1", symlinks=True)
    run = submitted
    write_json(run.submission, {"argv": ["sbatch", "x"], "job_id": "7", "uid": os.getuid()})
    lookup.remember(run, "7")
    slurm.set_state("7", "PENDING" if request.param == "queued" else "COMPLETED")
    run.job_log.write_text("error: no such partition\n")
    if request.param != "queued":
        trained(run, request.param == "held")
    return run


def files_of(run):
    """The files that the kit wrote, but for the code."""
    return sorted(path for path in run.path.rglob("*") if path.is_file() and not path.is_symlink())


def check(words, run, path, capfd):
    """A command, after a damage of a file, ends with an error in a line, or with success."""
    code = main([str(run.path) if word == "RUN" else word for word in words])
    text = "".join(capfd.readouterr())
    where = f"{path}: {words}: {text}"
    assert code in (0, 1, 2) and "Traceback" not in text and "\x1b" not in text, where
    assert words[0] != "status" or (code == 0 and "other" in text), where


@pytest.mark.long
@pytest.mark.plugin("look")
@pytest.mark.parametrize("harm", DAMAGES.values(), ids=DAMAGES)
def test_a_command_that_looks_names_a_damaged_file_and_changes_nothing(run, capfd, harm):
    for path in files_of(run):
        kept = path.read_bytes()
        harm(path)
        damaged = tree(run.path)
        for words in LOOKING:
            check(words, run, path, capfd)
            assert tree(run.path) == damaged, words
        path.write_bytes(kept)
    relink(run.kit, run.kit.name)
    check(["why", "RUN"], run, run.kit, capfd)


@pytest.mark.long
def test_a_command_that_changes_a_damaged_run_changes_no_other(run, here, capfd):
    whole, others = here / "whole", tree(here / "runs/other")
    shutil.copytree(run.path, whole, symlinks=True)
    for path in files_of(run):
        for words in CHANGING:
            without_last(path)
            check(words, run, path, capfd)
            assert tree(here / "runs/other") == others, words
            shutil.rmtree(run.path)
            shutil.copytree(whole, run.path, symlinks=True)
    relink(run.kit, run.kit.name)
    check(["resume", "RUN"], run, run.kit, capfd)
