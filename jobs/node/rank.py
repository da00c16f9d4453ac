"""The wrapper of each rank: dies with torchrun, opens the log of its global rank, execs the rank.

torchrun starts `python -m jobs.node.rank RUN_DIR COMMAND...`. COMMAND replaces this process by
exec, so the pid that torchrun watches and the agent signals is the pid of the rank itself. If
COMMAND is a user's script or module, it replaces a child of this process instead, and this process
waits for the child and records why it failed. A forked rank calls `begin` (jobs.node.forked_rank).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from .. import records
from ..console import BestEffort, begin_lines_with_time, print_line, with_time
from ..procfs import parent_of
from ..records.frozen import Provenance
from ..records.nodes import node_name
from ..rundir import AttemptDir, RunDir, Timeline, code_folders, relink
from . import left_running, script_failure
from .prctl import adopt_orphans, die_with_parent, set_name
from .script_failure import ScriptEnd

UNCAUGHT = Path(__file__).resolve().with_name("uncaught")


def remove_kit_code(search_path: str, run_dir: RunDir) -> str:
    """Return a PYTHONPATH without the run's frozen code and kit, and without empty entries.

    Otherwise `import trainer` in a user's script would find the kit's package. An empty entry is
    the working directory.
    """
    entries = filter(None, search_path.split(os.pathsep))
    frozen = code_folders(run_dir)
    return os.pathsep.join(entry for entry in entries if entry not in frozen)


def redirect_output(log: Path) -> None:
    """Append stdout and stderr to `log`."""
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def fork_rank(attempt_dir: AttemptDir, on_end: Callable[[int, str], None]) -> None:
    """Return in a child process, which becomes the rank; this process waits for it and exits.

    A user's script cannot be trusted to record why it fails: it may be killed, or call sys.exit.
    This process has the exit code of the script, or of the training that it started and left. It
    ignores the stop signals, as torchrun does. The agent sends them to the script.
    on_end: gets the exit code, and the commands that the script left running.
    """
    waiting = os.getpid()
    adopt_orphans(True)
    child = os.fork()
    if child == 0:
        die_with_parent()
        if os.getppid() != waiting:  # it died before prctl(): the kernel sends no signal
            os._exit(1)
        return
    code, left = left_running.wait_for(child), ""
    if code == 0:
        code, left = left_running.outlasting(child, attempt_dir)
    on_end(code, left)
    os._exit(code if code >= 0 else 128 - code)


def die_with_torchrun() -> None:
    """Have the kernel kill this process when its torchrun dies; ends it if that has just died.

    The kernel sends no signal for a torchrun that died before prctl(). Then the agent is not the
    grandparent of this process, which would run for ever.
    """
    die_with_parent()
    if parent_of(os.getppid()) != int(os.environ["KIT_AGENT_PID"]):
        sys.exit(with_time("torchrun ended before the rank started"))


def begin(run_dir: RunDir) -> None:
    """Give this process the log, the event and the name (`ps -o comm`) of its rank.

    If the disk is full or gone, the rank still starts; its output then goes to the job's log.
    """
    attempt, rank = int(os.environ["KIT_ATTEMPT"]), int(os.environ["RANK"])
    log, host = run_dir.attempt(attempt).rank_log(rank), node_name()
    best_effort = BestEffort(f"rank {rank} on {host}")
    set_name(f"rank-{rank:05d}")  # a fork has torchrun's command line
    with best_effort():
        redirect_output(log)
    with best_effort():
        relink(run_dir.rank_log(rank), f"../{log.parent.name}/{log.name}")
    with best_effort():
        # torchrun chooses which rank runs where: it sorts the nodes by the text of their addresses.
        Timeline(run_dir, f"rank-{rank:05d}", attempt).event("spawn", host=host, pid=os.getpid())
    print_line(f"attempt {attempt}: rank {rank} of {os.environ['WORLD_SIZE']} on {host}")


def main(argv: list[str]) -> None:
    """Become `argv[1:]` as a rank of the run directory `argv[0]`."""
    begin_lines_with_time()
    die_with_torchrun()
    run_dir, command = RunDir(Path(argv[0])), argv[1:]
    attempt, rank = int(os.environ["KIT_ATTEMPT"]), int(os.environ["RANK"])
    attempt_dir, host = run_dir.attempt(attempt), node_name()
    work = os.environ.get("KIT_WORK_DIR")  # set for a user's script or module

    reports, pipe = os.pipe()

    def record_end(exit_code: int, left: str) -> None:
        with BestEffort(f"rank {rank} on {host}")():
            if exit_code == 0:  # other ranks may still wait for this one
                more = {"left": left} if left else {}
                Timeline(run_dir, f"rank-{rank:05d}", attempt).event("exited", **more)
                return
            report = script_failure.read_report(reports)
            log, args = attempt_dir.rank_log(rank), tuple(command)
            end = ScriptEnd(exit_code, log, str(work), args, report)
            records.write(attempt_dir.rank_error(rank), script_failure.record_of(end, rank, host))

    if work is not None:
        fork_rank(attempt_dir, record_end)
    begin(run_dir)
    if work is not None:
        enter_work(Path(work), command, run_dir)
        report_to(pipe, run_dir)
    os.execvp(command[0], command)


def enter_work(work: Path, command: list[str], run_dir: RunDir) -> None:
    """Make a user's script or module start in its working directory."""
    work.mkdir(exist_ok=True)  # a scratch purge may have deleted it
    os.chdir(work)
    if command[2:4] != ["-P", "-m"]:  # a script; Python finds a module by the search path
        os.environ["PYTHONPATH"] = remove_kit_code(os.environ.get("PYTHONPATH", ""), run_dir)


def report_to(pipe: int, run_dir: RunDir) -> None:
    """Make the interpreter that this process becomes report its error: jobs/node/uncaught.

    It also refuses modules of the repository that was submitted, whose frozen copy the run has.
    """
    if not UNCAUGHT.is_dir():  # a kit that was packed without it: the log is read instead
        return
    os.set_blocking(pipe, False)  # a report that does not fit must not stop the script
    os.set_inheritable(pipe, True)
    os.environ["KIT_ERROR_PIPE"] = str(pipe)
    known = records.read_leniently(Provenance, run_dir.provenance)
    os.environ["KIT_LIVE_CODE"] = "" if known is None else known.repository or ""
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(UNCAUGHT), *filter(None, [inherited])])


if __name__ == "__main__":
    main(sys.argv[1:])
