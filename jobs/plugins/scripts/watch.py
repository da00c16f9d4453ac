"""Notices that no rank of a user's script or module writes any more: launch.hang_timeout_s.

A thread of the first node's agent looks at the logs of all ranks and at what kit_stop.py reports.
If nothing of it changes for that long it writes `hang.json` and an error record. Such a thread of
every agent that sees `hang.json` sends its ranks SIGABRT: Python then writes their stacks to their
logs.
"""

import contextlib
import os
import signal
import time

from ...base import files
from ...base.procfs import children
from ...base.stop_signals import send
from ...contract import records
from ...contract.kinds import Kind
from ...contract.records.nodes import HangConclusion, RankError
from ...contract.records.timeline import read_events
from ...contract.rundir import AttemptDir, RunDir

LOOK_S = 5.0
ABORT_LIMIT_S = 30.0


def watch(run_dir: RunDir, attempt: int, host: str | None, limit_s: float, agent: int) -> None:
    """Watch the ranks of a node until a stop, which has its own time limit; end them if they hang.

    host: of the first node, whose agent watches the ranks of all nodes; None on the others.
    agent: the id of the process whose child is torchrun.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # the agent waits for it
    attempt_dir, look_s = run_dir.attempt(attempt), min(LOOK_S, limit_s / 4)
    has_ranks, quiet_s = False, 0.0
    before: tuple[tuple[int, int], ...] = ()
    while True:
        time.sleep(look_s)
        has_ranks = has_ranks or bool(ranks_of(agent))
        with contextlib.suppress(OSError):  # the next look may succeed
            if files.exists(attempt_dir.stop_requested):
                return
            # In steps: time in which the job was suspended does not count.
            now = activity(run_dir, attempt_dir) if has_ranks and host is not None else ()
            quiet_s, before = quiet_s + look_s if now and now == before else 0.0, now
            if host is not None and quiet_s > limit_s:
                record_hang(run_dir, attempt_dir, host, limit_s)
            if files.exists(attempt_dir.hang):
                # At the same moment on each node: once one has failed, Slurm ends the others,
                # whose ranks could not write their stacks any more.
                wait_s = os.stat(attempt_dir.hang).st_mtime + 2 * look_s - time.time()
                time.sleep(min(max(wait_s, 0.0), 2 * look_s))
                break
    send(signal.SIGABRT, ranks_of(agent))
    time.sleep(ABORT_LIMIT_S)
    send(signal.SIGKILL, children(agent))  # a torchrun whose ranks survive it


def ranks_of(agent: int) -> list[int]:
    return children(*children(agent))


def activity(run_dir: RunDir, attempt_dir: AttemptDir) -> tuple[tuple[int, int], ...]:
    """Return size and time of each rank's log and of the two reports; () without a log."""
    logs = files.files_in(attempt_dir.path, "rank-*.log")
    reports = filter(files.exists, (run_dir.progress, run_dir.saved))
    stats = [os.stat(path) for path in (*logs, *reports)] if logs else []
    return tuple((each.st_size, each.st_mtime_ns) for each in stats)


def record_hang(run_dir: RunDir, attempt_dir: AttemptDir, host: str, limit_s: float) -> None:
    """Write the conclusion that all agents see. host: of the agent that came to it."""
    error = (
        f"no output and no report of any rank for {limit_s:.0f} s "
        "(launch.hang_timeout_s); the stacks are at the end of the ranks' logs"
    )
    events = read_events(run_dir.timeline("rank-00000"))
    spawned = [each.host for each in events if each.event == "spawn"]
    host = (spawned and spawned[-1]) or host  # torchrun chooses where rank 0 runs
    first = RankError(time.time(), 0, host, error, kind=Kind.HANG)
    records.write(attempt_dir.rank_error(0), first)
    records.write(attempt_dir.hang, HangConclusion(0, error, ()))
