"""Runs Slurm's client commands: with a time limit, and again while slurmctld does not answer.

A missing answer is None and no exception, because the caller can still decide from the run
directory. Standard library only.
"""

import contextlib
import os
import random
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..base import environment
from ..base.console import print_line

CALL_TIMEOUT_S = 30
SBATCH_TIMEOUT_S = 120  # a plugin of the site, or a slow file system, may hold it up
SLOW_S = 3.0
# How long a call is repeated while slurmctld does not answer, and the longest pause between two.
PATIENCE_S = 600.0
MAX_PAUSE_S = 30.0
# What Slurm's commands print if no slurmctld answered. Source: slurm_errno.c
NO_CONTACT = re.compile(
    r"[Uu]nable to contact|[Cc]onnection (refused|timed out|rejected)|timed out|[Cc]ommunication"
    r"|Message send failure|[Cc]ontroller (is )?in standby mode"
    r"|Rate limit exceeded"  # of slurmctld, for requests of one user (Slurm 23.02)
    r"|Connection forced closed by quiesce timeout"  # by a reconfiguration (Slurm 24.11)
    # No munge on this host or on slurmctld's, or clocks that differ: it may come back.
    r"|Munge encode failed|Protocol authentication error|Authentication failure"
    r"|Invalid authentication credential|Authentication credential (expired|invalid)"
    r"|Failed to connect to authentication agent|Can't find an address, check slurm.conf"
)
# What they print if slurmctld got the request and its answer did not come. Source: slurm_errno.c
NO_ANSWER_IN_TIME = re.compile(
    r"timed out on send/recv|Zero Bytes were transmitted|receive failure|shutdown failure"
    r"|Munge decode failed"
)


def call(
    argv: Sequence[str],
    environ: Mapping[str, str] | None = None,
    folder: str | None = None,
    limit_s: float | None = None,
) -> subprocess.CompletedProcess[str] | None:
    """Run a Slurm command; returns None if it cannot be started or takes too long.

    environ: its whole environment; by default this process's, without the user's filters and
    formats: times are seconds since the epoch. folder: its working directory.
    """
    with say_if_slow(argv[0]), contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(
            argv,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=limit_s or {"sbatch": SBATCH_TIMEOUT_S}.get(Path(argv[0]).name, CALL_TIMEOUT_S),
            check=False,
            env=environment.for_reading(os.environ) if environ is None else environ,
            cwd=folder,
        )
    return None


def output(argv: Sequence[str], limit_s: float | None = None) -> str:
    """Return what a Slurm command prints; "" if it fails or does not answer."""
    answer = call(argv, limit_s=limit_s)
    return answer.stdout if answer is not None and answer.returncode == 0 else ""


@contextlib.contextmanager
def say_if_slow(program: str) -> Iterator[None]:
    """Write one line to stderr if the block, a call of a Slurm command, takes longer than SLOW_S.

    Without it a user sees nothing for minutes where slurmctld is down.
    """
    text = f"still waiting for {Path(program).name} ({SLOW_S:.0f} s)"
    timer = threading.Timer(SLOW_S, print_line, [text])
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # no thread at the limit of processes
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def call_patiently(
    argv: Sequence[str],
    environ: Mapping[str, str] | None = None,
    patience_s: float = PATIENCE_S,
    is_repeatable: bool = True,
) -> subprocess.CompletedProcess[str] | None:
    """Run a Slurm command as `call` does, repeated for up to `patience_s` without an answer.

    is_repeatable: also where slurmctld may have got the request, and its answer alone was lost.
    """
    for pause_s in pauses(patience_s):
        answer = call(argv, environ)
        is_lost = answer is None or NO_ANSWER_IN_TIME.search(answer.stderr)
        is_last = shutil.which(argv[0]) is None or (is_lost and not is_repeatable)
        if is_last or is_answered(answer):
            return answer
        print_line(f"slurmctld does not answer {argv[0]}, next try in {pause_s:.0f} s")
        time.sleep(pause_s)
    return call(argv, environ)


def pauses(patience_s: float) -> Iterator[float]:
    """Yield growing pauses in seconds, spread at random, until `patience_s` have passed."""
    pause_s, deadline = 1.0, time.monotonic() + patience_s
    while time.monotonic() < deadline:
        yield pause_s * random.uniform(0.5, 1.5)
        pause_s = min(2 * pause_s, MAX_PAUSE_S)


def is_answered(answer: subprocess.CompletedProcess[str] | None) -> bool:
    """Return whether slurmctld itself answered, even with an error."""
    if answer is None:
        return False
    if answer.returncode == 0:
        return True
    return not any(each.search(answer.stderr) for each in (NO_CONTACT, NO_ANSWER_IN_TIME))
