"""The wrapper of each rank: dies with torchrun, opens the log of its global rank, execs the rank.

torchrun starts `python -m jobs.node.rank RUN_DIR COMMAND...`. COMMAND replaces this process by
exec, so the pid that torchrun watches and the agent signals is the pid of the rank itself.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from pathlib import Path

from jobs.console import BestEffort, begin_lines_with_time, say, with_time
from jobs.procfs import parent_of
from jobs.rundir import RunDir, Timeline, relink

PR_SET_PDEATHSIG = 1  # Source: linux/prctl.h


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, even by SIGKILL."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def remove_kit_code(search_path: str, code: Path) -> str:
    """A PYTHONPATH without `code`, the frozen code of the kit, and without empty entries.

    Otherwise `import trainer` in a user's script would find the kit's package. An empty entry is
    the working directory, which is the frozen code, too.
    """
    entries = filter(None, search_path.split(os.pathsep))
    return os.pathsep.join(entry for entry in entries if entry != str(code))


def redirect_output(log: Path) -> None:
    """Append stdout and stderr to `log`."""
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def main(argv: list[str]) -> None:
    """Become `argv[1:]` as a rank of the run directory `argv[0]`."""
    die_with_parent()
    begin_lines_with_time()
    # torchrun may have died between fork and prctl. Then the agent is not the grandparent of this
    # process, the kernel sends no signal, and this process would run for ever.
    if parent_of(os.getppid()) != int(os.environ["KIT_AGENT_PID"]):
        sys.exit(with_time("torchrun ended before the rank started"))
    run_dir, command = RunDir(Path(argv[0])), argv[1:]
    attempt, rank = int(os.environ["KIT_ATTEMPT"]), int(os.environ["RANK"])
    log = run_dir.attempt(attempt).rank_log(rank)
    host = socket.gethostname()
    best_effort = BestEffort(f"rank {rank} on {host}")
    # If the disk is full or gone, the rank still starts; its output then goes to the job's log.
    with best_effort():
        redirect_output(log)
    with best_effort():
        relink(run_dir.rank_log(rank), f"../{log.parent.name}/{log.name}")
    with best_effort():
        # torchrun chooses which rank runs where: it sorts the nodes by the text of their addresses.
        Timeline(run_dir, f"rank-{rank:05d}", attempt).event("spawn", host=host, pid=os.getpid())
    say(f"attempt {attempt}: rank {rank} of {os.environ['WORLD_SIZE']} on {host}")
    # launch.script. The trainer and launch.module have -m: Python finds them in the working
    # directory.
    if "-m" not in command[:3]:
        search_path = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = remove_kit_code(search_path, run_dir.code)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
