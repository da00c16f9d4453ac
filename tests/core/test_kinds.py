"""The table of kinds: each has its line, and each command can be typed.

`python -m tests.core.test_kinds` writes kinds.txt, what a user reads about each kind. Other tests
compare kinds, not sentences.
"""

import errno
from pathlib import Path

import pytest

from slurm_job_kit.jobs.base import installation
from slurm_job_kit.jobs.contract.kinds import KINDS, Cause, Kind
from slurm_job_kit.jobs.contract.known_causes import known_cause, meaning

MESSAGES = Path(__file__).with_name("kinds.txt")


def messages():
    """Yield sentence, advice and command of each kind, for a run x."""
    for kind, row in KINDS.items():
        command = installation.command(row.command, "x", row.change, *row.flags)
        yield f"{kind}\n    {row.what}\n    {row.advice}\n    {command}\n"


@pytest.mark.plugin("look")  # whose commands some kinds name
def test_what_a_user_reads_about_each_kind():
    assert "".join(messages()) == MESSAGES.read_text(encoding="utf-8")


def test_each_kind_has_one_line_and_each_cause_a_kind():
    assert list(KINDS) == list(Kind)
    assert {row.cause for row in KINDS.values()} == {*Cause, None}
    # What stops an attempt from outside has one name.
    outside = {*Cause} - {Cause.CRASH, Cause.NODE, Cause.LOST}
    assert {Kind(cause) for cause in outside} <= {*Kind}


RENAMED = "FileNotFoundError: [Errno 2] No such file or directory: 'a.tmp' -> 'a.pt'"
# Of torch.save on a full disk, or at the end of a quota.
TORCH_SAVE = "[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"


@pytest.mark.parametrize(
    ("text", "names", "number", "kind"),
    [
        ("torch.OutOfMemoryError: x", ["OutOfMemoryError"], None, "gpu_out_of_memory"),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory", (), None, "out_of_memory"),
        ("slurmstepd: error: Detected 1 oom_kill event", (), None, "out_of_memory"),
        ("OSError: x", ["OSError"], errno.ENOSPC, "disk_full"),
        ("bash: x: Permission denied", (), None, "permission"),
        ("/usr/bin/python3: No module named torch", (), None, "import_error"),
        ("OSError: x", ["OSError"], errno.EADDRINUSE, "port"),
        ("CUDA error: uncorrectable ECC error encountered", (), None, "gpu_fault"),
        ("CUDA error: device-side assert triggered", (), None, None),
        ("ValueError: out of memory", ["ValueError", "Exception"], None, None),
        (f"RuntimeError: {TORCH_SAVE}", ("RuntimeError",), None, "disk_full"),
        ("OSError: [Errno 116] Stale file handle: '/net/k.so'", (), None, "stale_file"),
        ("OSError: x", ["OSError"], errno.ESTALE, "stale_file"),
        ("OSError: [Errno 122] Disk quota exceeded", (), None, "quota"),
        ("RuntimeError: can't start new thread", (), None, "process_limit"),
        ("bash: fork: retry: Resource temporarily unavailable", (), None, "process_limit"),
        ("OSError: x", ["BlockingIOError", "OSError"], errno.EAGAIN, "process_limit"),
        ("RuntimeError: received 0 items of ancdata", (), None, "process_limit"),
        ("write to </torch_7_8>: No space left on device (28)", (), None, "process_limit"),
        ("Bus error. Perhaps workers are out of shared memory.", (), None, "process_limit"),
        (RENAMED, (), None, "user_code"),
        ("unable to lock file, 'Resource temporarily unavailable'", (), None, None),
        ("omegaconf.errors.ConfigKeyError: Key 'x' not in 'C'", (), None, "spec_mistake"),
        ("ValueError: Some keys are not used by the HfArgumentParser", (), None, "spec_mistake"),
    ],
)
def test_a_known_cause_is_found_by_class_number_or_words(text, names, number, kind):
    assert known_cause(text, names, number) == kind


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (RENAMED, "let only the process with RANK=0 save"),
        ("OSError: [Errno 24] Too many open files: 'x'", "ulimit -n"),
        ("/os.py\", line 9, in __getitem__\n  x\nKeyError: 'X'", "the variable X is not set: set"),
        ("/os.py\", line 9, in __getitem__\nKeyError: 'SLURM_PROCID'", ""),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'a/b'", "launch.inputs"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/a/b'", ""),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'ffmpeg'", ""),
    ],
)
def test_what_a_text_means_is_added_where_it_does_not_say_it(text, words):
    assert words in meaning(text) and bool(words) is bool(meaning(text))


if __name__ == "__main__":
    MESSAGES.write_text("".join(messages()), encoding="utf-8")
