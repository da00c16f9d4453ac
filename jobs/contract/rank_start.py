"""The start of each rank of an agent's torchrun: it dies with torchrun, and opens its own log.

The pid that torchrun watches and the agent signals is that of the rank itself.
"""

import os
import sys
from pathlib import Path

from ..base.console import BestEffort, print_line, with_time
from ..base.files import relink
from ..base.prctl import die_with_parent, set_name
from ..base.procfs import parent_of
from .records.nodes import node_name
from .records.timeline import Timeline
from .rundir import RunDir

# A folder of the node, in which each rank creates a file of its number for the agent.
RANKS_DIR = "KIT_RANKS_DIR"


def begin() -> None:
    """Give this process the log, the event and the name (`ps -o comm`) of its rank.

    If the disk is full or gone, the rank still starts; its output then goes to the job's log.
    """
    _die_with_torchrun()
    attempt, rank = int(os.environ["KIT_ATTEMPT"]), int(os.environ["RANK"])
    run_dir = RunDir(Path(os.environ["KIT_RUN_DIR"]))
    log, host = run_dir.attempt(attempt).rank_log(rank), node_name()
    best_effort = BestEffort(f"rank {rank} on {host}")
    set_name(f"rank-{rank:05d}")
    with best_effort(), open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    with best_effort():
        Path(os.environ[RANKS_DIR], str(rank)).touch()
    with best_effort():
        relink(run_dir.rank_log(rank), f"../{log.parent.name}/{log.name}")
    with best_effort():
        # torchrun chooses which rank runs where: it sorts the nodes by the text of their addresses.
        Timeline(run_dir, f"rank-{rank:05d}", attempt).event("spawn", host=host, pid=os.getpid())
    print_line(f"attempt {attempt}: rank {rank} of {os.environ['WORLD_SIZE']} on {host}")


def _die_with_torchrun() -> None:
    """Have the kernel kill this process when its torchrun dies; ends it if that has just died.

    The kernel sends no signal for a torchrun that died before prctl(). Then the agent is none of
    the ancestors of this process, which would run for ever.
    """
    die_with_parent()
    agent, ancestor = int(os.environ["KIT_AGENT_PID"]), os.getppid()
    while ancestor not in (agent, 1):
        ancestor = parent_of(ancestor) or 1
    if ancestor != agent:
        sys.exit(with_time("torchrun ended before the rank started"))
