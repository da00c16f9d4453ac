"""The thin wrapper of each rank: dies with torchrun, logs by global rank, then becomes the rank.

torchrun starts `python -m jobs.node.rank RUN_DIR COMMAND...`. COMMAND replaces this process, so
that the pid that torchrun watches and the agent signals is the trainer's own.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from pathlib import Path

from jobs.console import BestEffort, begin_lines_with_time, say
from jobs.procfs import parent_of
from jobs.rundir import RunDir, Timeline, relink

PR_SET_PDEATHSIG = 1  # Source: linux/prctl.h


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, however that dies."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def without_code(search_path: str, code: Path) -> str:
    """A PYTHONPATH as it was before the kit's own code was put on it.

    `import trainer` of somebody's script would find ours. An empty entry is the working directory,
    and that is ours, too.
    """
    entries = filter(None, search_path.split(os.pathsep))
    return os.pathsep.join(entry for entry in entries if entry != str(code))


def redirect_output(log: Path) -> None:
    """Append stdout and stderr to `log`."""
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def main(argv: list[str]) -> None:
    """Become `argv[1:]` as a rank of the run directory `argv[0]`."""
    die_with_parent()
    begin_lines_with_time()
    # Between fork and prctl torchrun may have died already: then the agent is not our
    # grandparent, and nobody would ever end this process.
    if parent_of(os.getppid()) != int(os.environ["KIT_AGENT_PID"]):
        sys.exit("torchrun is gone before the rank started")
    run_dir, command = RunDir(Path(argv[0])), argv[1:]
    attempt, rank = int(os.environ["KIT_ATTEMPT"]), int(os.environ["RANK"])
    log = run_dir.attempt(attempt).rank_log(rank)
    host = socket.gethostname()
    best_effort = BestEffort(f"rank {rank} on {host}")
    # On a full or vanished disk the rank still gets its chance; it then talks to the job's log.
    with best_effort():
        redirect_output(log)
    with best_effort():
        relink(run_dir.rank_log(rank), f"../{log.parent.name}/{log.name}")
    with best_effort():
        # Which rank runs where is torchrun's choice: it orders nodes by the text of addresses.
        Timeline(run_dir, f"rank-{rank:05d}", attempt).event("spawn", host=host, pid=os.getpid())
    say(f"attempt {attempt}: rank {rank} of {os.environ['WORLD_SIZE']} on {host}")
    if "-m" not in command[:3]:  # launch.script; a module is found in the working directory
        os.environ["PYTHONPATH"] = without_code(os.environ.get("PYTHONPATH", ""), run_dir.code)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
