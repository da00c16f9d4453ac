"""Notices that no rank of a user's script or module writes any more.

A thread of the first node's agent looks at the logs of all ranks and at what kit_stop.py reports.
If nothing of it changes for launch.hang_timeout_s it writes `hang.json` and an error record. Once a
rank has exited with 0 the limit is ENDED_LIMIT_S by default, and the run is done, but not ended.
Each agent's thread that sees `hang.json` sends its ranks SIGABRT: Python then logs their stacks.
"""

import contextlib
import os
import signal
import time
from collections.abc import Sequence

from ...base import files
from ...base.procfs import children
from ...base.stop_signals import send
from ...contract import records
from ...contract.kinds import Kind
from ...contract.records.nodes import HangConclusion, RankError
from ...contract.records.timeline import read_events
from ...contract.rundir import AttemptDir, RunDir
from ...runs.fact_reader import ends_of
from .progress import newest_file

ENDED_LIMIT_S = 600.0
ABORT_LIMIT_S = 30.0


def silence_limit_s(hang_timeout_s: float | str) -> float:
    """Return how long the ranks may be silent once one has ended. hang_timeout_s: of the spec."""
    return ENDED_LIMIT_S if isinstance(hang_timeout_s, str) else hang_timeout_s


def watch(
    run_dir: RunDir, attempt: int, host: str | None, hang_timeout_s: float | str, agent: int
) -> None:
    """Watch the ranks of a node until a stop, which has its own time limit; end them if they hang.

    host: of the first node, whose agent watches the ranks of all nodes; None on the others.
    hang_timeout_s: of the spec. agent: the id of the process whose child is torchrun.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # the agent waits for it
    attempt_dir, limit_s = run_dir.attempt(attempt), silence_limit_s(hang_timeout_s)
    has_ranks, quiet_s, look_s = False, 0.0, min(30.0, limit_s / 20)
    before: tuple[tuple[int, int], ...] = ()
    while True:
        time.sleep(look_s)
        has_ranks = has_ranks or bool(ranks_of(agent))
        with contextlib.suppress(OSError):  # the next look may succeed
            if files.exists(attempt_dir.stop_requested):
                return
            # In steps: time in which the job was suspended does not count.
            if host is not None and has_ranks:
                names = files.names_in(attempt_dir.path)
                is_limited = hang_timeout_s != "auto" or ends_of(names)[0]
                now = activity(run_dir, attempt_dir, names) if is_limited else ()
                quiet_s, before = quiet_s + look_s if now and now == before else 0.0, now
                if quiet_s > limit_s:
                    record_hang(run_dir, attempt_dir, host, limit_s, names)
            if files.exists(attempt_dir.hang):
                # At the same moment on each node: once one has failed, Slurm ends the others,
                # whose ranks could not write their stacks any more.
                wait_s = os.stat(attempt_dir.hang).st_mtime + 2 * look_s - time.time()
                time.sleep(min(max(wait_s, 0.0), 2 * look_s))
                break
    if ranks := ranks_of(agent):
        send(signal.SIGABRT, ranks)
        time.sleep(ABORT_LIMIT_S)
    send(signal.SIGKILL, children(agent))  # a torchrun whose ranks survive it, or have ended


def ranks_of(agent: int) -> list[int]:
    return children(*children(agent))


def activity(
    run_dir: RunDir, attempt_dir: AttemptDir, names: Sequence[str]
) -> tuple[tuple[int, int], ...]:
    """Return size and time of each file of a rank and of the two reports; () without a log.

    names: of the files of the attempt.
    """
    of_ranks = [attempt_dir.path / name for name in names if name.startswith("rank-")]
    reports = filter(files.exists, (run_dir.progress, run_dir.saved))
    # A rank that alone goes on may save more often than it prints.
    newest = newest_file(run_dir) if ends_of(names)[0] else 0
    found = [(each.st_size, each.st_mtime_ns) for each in map(os.stat, (*of_ranks, *reports))]
    return (*found, (0, newest)) if of_ranks else ()


def record_hang(
    run_dir: RunDir, attempt_dir: AttemptDir, host: str, limit_s: float, names: Sequence[str]
) -> None:
    """Write the conclusion that all agents see. host: of the agent that came to it."""
    ends, rank = ends_of(names)
    error = (
        f"no output and no report of any rank for {limit_s:.0f} s "
        "(launch.hang_timeout_s); the stacks are at the end of the ranks' logs"
    )
    if ends:
        error = f"done but not ended: {ends}: {error}"
    events = read_events(run_dir.timeline(f"rank-{rank:05d}"))
    spawned = [each.host for each in events if each.event == "spawn"]
    host = (spawned and spawned[-1]) or host  # torchrun chooses where a rank runs
    # A retry would train again what is done, and not end either.
    kind, is_held = (Kind.NOT_ENDED, True) if ends else (Kind.HANG, False)
    first = RankError(time.time(), rank, host, error, kind=kind, would_repeat=is_held)
    records.write(attempt_dir.rank_error(rank), first)
    records.write(attempt_dir.hang, HangConclusion(rank, error, ()))
