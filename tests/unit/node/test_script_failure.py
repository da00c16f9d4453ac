"""The error record of a user's script: from its exit code and the end of its log."""

import signal

import pytest

from slurm_job_kit.jobs.node.script_failure import Report, ScriptEnd, record_of
from slurm_job_kit.jobs.runs.interpret import format_error

TRACE = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
    ~~~~^^
ValueError: bad batch
"""
THROWN = """terminate called after throwing an instance of 'c10::Error'
  what():  CUDA error: an illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call
"""
THROWN = """terminate called after throwing an instance of 'c10::Error'
  what():  CUDA error: an illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call
"""
GLOO = "RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]:1"


@pytest.fixture
def failed(tmp_path):
    """The record of rank 1 on n2, with a log and an exit code."""

    def record(text, exit_code=1, **report):
        (tmp_path / "log").write_text(text)
        end = ScriptEnd(exit_code, tmp_path / "log", "/run/work", report=Report(**report))
        return record_of(end, 1, "n2")

    return record


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (TRACE, "ValueError: bad batch"),
        (f"step 1\n{TRACE}step 7/10\nWarning: a process group was not destroyed\n", None),
        (TRACE.replace("bad batch", "bad batch\nof 7"), "ValueError: bad batch\nof 7"),
        ("".join(f"[rank1]: {line}\n" for line in TRACE.splitlines()), "ValueError: bad batch"),
        (TRACE.replace("ValueError", "KeyError") + "\nDuring handling of it:\n\n" + TRACE, None),
        (TRACE.replace("ValueError: bad batch", "torch.cuda.Odd"), "torch.cuda.Odd"),
        (
            '  File "train.py", line 1\n    x =\n       ^\nSyntaxError: invalid\n',
            'SyntaxError: invalid\n  File "train.py", line 1\n    x =\n       ^',
        ),
    ],
)
def test_the_reason_is_the_last_line_of_the_last_traceback(failed, text, line):
    record = failed(text)
    assert record.error == (line or "ValueError: bad batch")
    assert record.traceback.endswith((line or "ValueError: bad batch").partition("\n  File")[0])
    assert "[rank1]" not in record.traceback
    assert not record.caused_by_peer


@pytest.mark.parametrize(
    ("exit_code", "reason"),
    [
        (3, "exited with code 3"),
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-signal.SIGKILL, "was killed by SIGKILL"),
        (-40, "was killed by signal 40"),
    ],
)
def test_an_earlier_traceback_is_not_the_reason_of_another_end(failed, exit_code, reason):
    record = failed(f"caught:\n{TRACE}step 2\n", exit_code)
    assert format_error(record) == f"rank 1 on n2 {reason}"
    assert (record.exit_code, record.traceback) == (exit_code, "")


def test_an_exit_without_a_traceback_is_its_code(failed):
    assert format_error(failed("")) == "rank 1 on n2 exited with code 1"


@pytest.mark.parametrize(
    ("line", "exit_code", "is_peers"),
    [
        (GLOO, 1, True),
        ("torch.distributed.DistBackendError: NCCL error, remote process exited", 1, True),
        ("torch.distributed.DistNetworkError: failed to recv, got 0 bytes", 1, True),
        ("BrokenPipeError: [Errno 32] Broken pipe", 1, False),
        ("RuntimeError: shapes differ", 1, False),
        ("", -signal.SIGTERM, True),
        ("", 128 + signal.SIGTERM, True),
        ("", -signal.SIGKILL, False),
    ],
)
def test_a_rank_that_lost_its_peer_or_that_torchrun_ended_is_not_the_cause(
    failed, line, exit_code, is_peers
):
    text = TRACE.replace("ValueError: bad batch", line)
    assert failed(text, exit_code).caused_by_peer == is_peers


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried", "gpu_out_of_memory"),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory", "out_of_memory"),
        ("MemoryError", "out_of_memory"),
        ("ValueError: out of memory cells", "user_code"),
    ],
)
def test_a_lack_of_memory_is_known_by_torchs_errors(failed, line, kind):
    assert failed(TRACE.replace("ValueError: bad batch", line)).kind == kind


def test_a_relative_path_that_is_not_there_comes_with_the_key_that_puts_it_there(failed):
    line = "FileNotFoundError: [Errno 2] No such file or directory: 'data/x.txt'"
    error = failed(TRACE.replace("ValueError: bad batch", line)).error
    assert error.startswith(f"{line}\n  hint: the script starts in /run/work; ")
    assert 'SET="launch.inputs=[data/x.txt]"' in error
    assert (
        "hint"
        not in failed(TRACE.replace("ValueError: bad batch", line.replace("'d", "'/d"))).error
    )


@pytest.mark.parametrize(
    ("line", "exit_code", "mistake"),
    [
        ("ValueError: bad batch", 1, "code"),
        ("", 3, "code"),
        ("", -signal.SIGKILL, None),
        ("", 128 + signal.SIGTERM, None),
        (GLOO, 1, None),
        ("MemoryError", 1, None),
    ],
)
def test_a_script_that_failed_by_itself_has_a_mistake_in_its_code(failed, line, exit_code, mistake):
    assert failed(TRACE.replace("ValueError: bad batch", line), exit_code).mistake == mistake


def test_a_log_that_is_gone_leaves_the_exit_code(tmp_path):
    record = record_of(ScriptEnd(1, tmp_path / "gone", "/run/work"), 1, "n2")
    assert record.error == "exited with code 1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (THROWN + "\nException raised from y.cpp:43\nframe #0: c10::Error::Error()\n\n", THROWN),
        ("F1125 18:00:00.1 140 a.cc:33] Check failed: n > 0\n", None),
        ("thread '<unnamed>' panicked at src/lib.rs:7:5:\nindex out of bounds\n", None),
        ("python: a.c:12: f: Assertion `n' failed.\n", None),
        ("libc++abi: terminating due to uncaught exception of type c10::Error: x\n", None),
        ("forrtl: severe (174): SIGSEGV, segmentation fault occurred\n", None),
        ("2026-11-25 18:00:00.1: F xla.cc:33] Non-OK-status: no device\n", None),
    ],
)
def test_a_process_that_a_signal_ended_has_its_fatal_error_as_reason(failed, text, words):
    ended = failed(text, -signal.SIGABRT).error
    assert ended.partition("\n  cause: ")[0] == f"was killed by SIGABRT: {words or text}".strip()
    # Of a worker: the process went on.
    later = failed(f"{text}step 7/10\n", -signal.SIGKILL).error
    assert later == "was killed by SIGKILL"


@pytest.mark.parametrize("code", [128 + signal.SIGSEGV, 256 - signal.SIGSEGV])
def test_an_exit_code_that_passes_a_signal_on_names_it(failed, code):
    record = failed("", code)
    assert record.error.endswith("a process that it started was killed by SIGSEGV")
    assert record.mistake is None


def test_a_dump_of_many_threads_is_the_thread_that_failed(failed):
    frames = "".join(f'  File "/lib/a.py", line {n} in f\n' for n in range(30))
    other = f"Thread 0x0000700000000000 (most recent call first):\n{frames}\n"
    own = "Current thread 0x00007f077a268040 (most recent call first):\n" + frames.replace(
        "a.", "b."
    )
    dump = f"Fatal Python error: Segmentation fault\n\n{other}{own}\nExtension modules: torch._C\n"
    words = failed(dump, -signal.SIGSEGV).error.split("\n")
    assert words[0] == "was killed by SIGSEGV: Fatal Python error: Segmentation fault"
    assert words[1] == '  File "/lib/b.py", line 0 in f' and 2 < len(words) < 12
    assert not any("a.py" in line or "Extension" in line for line in words)
