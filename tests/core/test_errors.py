"""A rank's failure: its record, its message and its exit status, also with other errors."""

import errno
import os
import pickle
import subprocess
import sys
import textwrap

import pytest
import torch
from torch.distributed import DistNetworkError

from slurm_job_kit.jobs.base.files import read_json, read_jsonl
from slurm_job_kit.jobs.contract.rundir import AttemptDir, RunDir
from slurm_job_kit.trainer import errors
from slurm_job_kit.trainer.errors import (
    StorageError,
    TransientStorageError,
    UserError,
    storage_error,
)
from slurm_job_kit.trainer.process.events import Events
from tests.core.run_files import REPOSITORY

FAIL = """
    import os, sys
    from slurm_job_kit.jobs.contract.rundir import AttemptDir
    from pathlib import Path
    from slurm_job_kit.trainer import errors
    attempt = AttemptDir(Path(sys.argv[1]))
    try:
        {raising}
    except BaseException as error:
        errors.fail(error, 3, attempt)
"""


def fail_with(raising, path):
    """The finished process of a rank that fails, which must end within seconds."""
    argv = [sys.executable, "-c", textwrap.dedent(FAIL.format(raising=raising)), path]
    return subprocess.run(argv, cwd=REPOSITORY, timeout=100, capture_output=True, text=True)


HELD = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOENT)


@pytest.mark.parametrize("number", [*HELD, errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_a_disk_error_holds_the_run_in_one_line_or_is_worth_another_attempt(number):
    error = storage_error(OSError(number, os.strerror(number), "/run/x"), "saving step 12")
    assert type(error) is (StorageError if number in HELD else TransientStorageError)
    assert isinstance(error, UserError) is (number in HELD)
    assert str(error).startswith(f"saving step 12: /run/x: {os.strerror(number)}")
    assert ("; " in str(error) and "then resume" in str(error)) is (number in HELD)
    assert "\n" not in str(error)
    other = OSError(errno.EMFILE, "too many open files")
    assert storage_error(other, "saving") is other


def test_a_failing_rank_leaves_its_traceback_and_a_record(tmp_path):
    done = fail_with("raise ValueError('a planted error')", tmp_path)
    assert done.returncode == errors.EXIT_FAILED
    assert done.stderr.startswith("Traceback") and "error: ValueError: a planted" in done.stderr
    record = read_json(AttemptDir(tmp_path).rank_error(3))
    assert (record["kind"], record["rank"]) == ("unknown", 3)
    assert record["error"] == "ValueError: a planted error"
    assert record["traceback"].startswith("Traceback") and not record["would_repeat"]


TRACE = "Traceback:\n  theirs\n"


@pytest.mark.parametrize(
    ("name", "trace", "status", "kind"),
    [
        ("CodeError", TRACE, errors.EXIT_FAILED, "unknown"),
        ("UserCodeError", TRACE, errors.EXIT_USER_ERROR, "user_code"),
        ("UserError", "", errors.EXIT_USER_ERROR, "spec_mistake"),
        ("TransientStorageError", "", errors.EXIT_FAILED, "disk_error"),
        ("Superseded", "", errors.EXIT_FAILED, "unknown"),
    ],
)
def test_what_explains_itself_is_one_line_below_the_trace_of_the_users_code(
    tmp_path, name, trace, status, kind
):
    words = ("train.x: why", trace) if trace else ("train.x: why",)
    done = fail_with(f"raise errors.{name}{words}", tmp_path)
    assert done.returncode == status
    assert done.stderr.startswith(f"{trace}trainer: rank 3 on ")
    assert done.stderr.endswith(": error: train.x: why\n")
    assert done.stderr.count("\n") == 1 + trace.count("\n")
    record = read_json(AttemptDir(tmp_path).rank_error(3))
    assert (record["error"], record["traceback"]) == ("train.x: why", trace)
    assert (record["kind"], record["caused_by_peer"]) == (kind, False)
    assert record["would_repeat"] is (status == errors.EXIT_USER_ERROR)


def raised(outer: BaseException, inner: BaseException) -> BaseException:
    """An error with another one behind it."""
    outer.__cause__ = inner
    return outer


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.UserCodeError("why", "Traceback"), "user_code"),
        (errors.CodeError("a disk of the data set", "Traceback"), "unknown"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "user_code"),
        (errors.UserError("no GPU"), "spec_mistake"),
        (errors.NotFinite("the loss is nan"), "not_finite"),
        (StorageError("the disk is full"), "unknown"),
        (TransientStorageError("stale"), "disk_error"),
        (OSError(errno.EIO, "bad sector"), "unknown"),
        (MemoryError(), "out_of_memory"),
        (errors.CodeError("train.dataset x: MemoryError", "trace"), "out_of_memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "gpu_out_of_memory"),
        (torch.distributed.DistError("a socket failed"), "unknown"),
        (RuntimeError("Connection closed by peer"), "unknown"),
        (RuntimeError("CUDA error: device-side assert triggered"), "unknown"),
        (errors.RankFailure("no progress"), "unknown"),
        (KeyboardInterrupt(), "unknown"),
        (storage_error(OSError(errno.ENOSPC, "x"), "saving"), "disk_full"),
        (raised(errors.CodeError("x", ""), PermissionError(errno.EACCES, "x")), "permission"),
        (OSError(errno.ENOSPC, "x"), "disk_full"),
        (raised(UserError("train.model: x"), ModuleNotFoundError("x")), "import_error"),
        (errors.NoCheckpointLeft("x"), "files_missing"),
    ],
    ids=lambda value: f"{type(value).__name__} {value}",
)
def test_the_kind_of_an_error_follows_from_its_type_its_cause_and_its_errno(error, kind):
    try:
        raise error  # in a file of the repository beside the kit, as a user's
    except BaseException as caught:
        assert errors.kind_of(caught) == kind


def test_an_error_without_a_frame_of_the_users_code_is_not_the_users(monkeypatch):
    monkeypatch.setattr(errors, "KIT", (REPOSITORY / "tests",))
    try:
        raise ValueError("x")
    except ValueError as error:
        assert errors.kind_of(error) == "unknown"


def test_an_error_of_the_users_code_comes_whole_out_of_another_process():
    error = pickle.loads(pickle.dumps(errors.UserCodeError("why", "Traceback")))
    assert (type(error), str(error), error.trace) == (errors.UserCodeError, "why", "Traceback")


@pytest.mark.parametrize(
    ("raising", "words"),
    [
        (
            "error = ValueError('a\\nb'); error.add_note('of c'); raise error",
            "ValueError: a\nb\nof c",
        ),
        ("raise ValueError('x') from KeyError('y')", "ValueError: x\nfirst cause: KeyError: 'y'"),
    ],
)
def test_a_reason_is_the_errors_own_words_and_the_first_cause(tmp_path, raising, words):
    fail_with(raising, tmp_path)
    assert read_json(AttemptDir(tmp_path).rank_error(3))["error"] == words


def test_a_damaged_file_of_the_run_directory_is_worth_another_attempt(tmp_path):
    (tmp_path / "owner.json").write_text('{"attempt": 1')
    read = f"errors.records.read(errors.RankError, Path({str(tmp_path / 'owner.json')!r}))"
    done = fail_with(read, tmp_path)
    assert done.returncode == errors.EXIT_FAILED and "Traceback" not in done.stderr
    record = read_json(AttemptDir(tmp_path).rank_error(3))
    assert "owner.json: not JSON" in record["error"] and not record["would_repeat"]


@pytest.mark.parametrize(
    ("raising", "hint"),
    [
        ("raise MemoryError", "give the job"),
        (
            "import torch; raise torch.OutOfMemoryError('CUDA out of memory. Tried')",
            "use a smaller",
        ),
    ],
)
def test_row_29_a_rank_that_ran_out_of_memory_says_so_with_a_way_out(tmp_path, raising, hint):
    assert fail_with(raising, tmp_path).returncode == errors.EXIT_FAILED
    record = read_json(AttemptDir(tmp_path).rank_error(3))
    of_gpu = "gpu_" if "CUDA" in raising else ""
    assert (record["kind"], record["would_repeat"]) == (f"{of_gpu}out_of_memory", False)
    assert f"\n  hint: {hint}" in record["error"] and record["error"].count("\n") == 1


NO_THREAD = """
        def start(self): raise RuntimeError("can't start new thread")
        import threading
        threading.Thread.start = start"""


@pytest.mark.parametrize(
    "harm",
    [
        "os.close(1); os.close(2)",
        "sys.stdout = sys.stderr = None",
        "full = os.open('/dev/full', os.O_WRONLY); os.dup2(full, 1); os.dup2(full, 2)",
        NO_THREAD,
    ],
)
def test_outputs_and_threads_that_fail_hide_neither_record_nor_status(tmp_path, harm):
    done = fail_with(f"{harm}\n        raise MemoryError", tmp_path)
    assert done.returncode == errors.EXIT_FAILED
    assert ("error: MemoryError" in done.stderr) is (harm is NO_THREAD)
    assert read_json(AttemptDir(tmp_path).rank_error(3))["kind"] == "out_of_memory"


def test_a_vanished_run_directory_leaves_the_error_in_the_log(tmp_path):
    done = fail_with("raise ValueError('x')", tmp_path / "gone")
    assert done.returncode == errors.EXIT_FAILED and "ValueError: x" in done.stderr
    assert not (tmp_path / "gone").exists()


def test_a_disk_that_never_answers_does_not_keep_a_failing_rank(tmp_path):
    # Opening a FIFO waits for ever for its other end.
    block = "os.mkfifo(attempt.path / f'.rank-00003.error.json.{os.getpid()}.tmp')"
    raising = f"{block}; errors.REPORT_LIMIT_S = 0.3; raise ValueError('x')"
    done = fail_with(raising, tmp_path)
    assert done.returncode == errors.EXIT_FAILED and "ValueError: x" in done.stderr


def test_only_the_first_error_is_reported(tmp_path):
    raising = """errors.exit_lock.acquire()
        import threading
        late = lambda: errors.fail(ValueError('late'), 3, attempt)
        threading.Thread(target=late, daemon=True).start()
        raise errors.RankFailure('first')"""
    done = fail_with(raising, tmp_path)
    assert "late" not in done.stderr
    assert read_json(AttemptDir(tmp_path).rank_error(3))["error"] == "first"


def test_events_that_cannot_be_written_are_dropped(tmp_path):
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    events = Events(2)
    events.event("start", t=12.5)
    events.open(run, 1)
    run.path.rename(tmp_path / "moved")
    events.event("save", step=1)
    assert not run.path.exists()
    (tmp_path / "moved").rename(run.path)
    events.event("stopped")
    start, stopped = read_jsonl(run.timeline("rank-00002"))
    assert (start["event"], start["attempt"], start["t"]) == ("start", 1, 12.5)
    assert stopped["event"] == "stopped"
    run.timeline("rank-00002").parent.rename(tmp_path / "timeline")
    run.timeline("rank-00002").parent.write_text("a file is in the way")
    later = Events(2)
    later.open(run, 2)
    later.event("import")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("[pair.cc:553] Connection closed by peer [10.0.0.2]:1234"), True),
        (torch.distributed.DistBackendError("NCCL communicator was aborted on rank 1."), True),
        (DistNetworkError("Failed to recv, got 0 bytes. Connection was likely closed."), True),
        (DistNetworkError("The client socket has failed to connect to n1:15000."), False),
        (RuntimeError("shapes do not match"), False),
    ],
)
def test_an_error_that_only_reports_a_dead_peer_is_known(error, expected):
    assert errors.is_caused_by_peer(error) is expected


def test_a_line_of_a_rank_controls_no_terminal(capsys):
    errors.log("loss\x1b[2J 0.1\n\tMüller")
    assert capsys.readouterr().out.endswith("loss\\x1b[2J 0.1\n\tMüller\n")
