"""The node agent: receives the stop signals of one node, starts torchrun, stops the ranks.

    srun python -m jobs.node RUN_DIR ATTEMPT --rdzv-endpoint ADDRESS:PORT

Slurm signals different processes on different sites: the whole process tree (proctrack/linuxproc),
the process group, or only the agent (proctrack/cgroup). So only the agent handles stop signals.
torchrun and the ranks inherit *ignored* stop signals: at SIGUSR1 torchrun would die and orphan its
ranks, and at SIGTERM it would kill them after 30 s and exit with 1.

Each rank installs its own handler first of all. A signal that arrives before that is lost, so the
agent sends the stop every second. The trainer stops at SIGTERM. A user's own script stops at
launch.stop_signal; with `none` the agent never signals it. The inherited ignored signals protect a
script that is still starting from a signal that Slurm sends to the whole tree.
"""

from __future__ import annotations

import sys

from jobs.node.stop_signals import block_stop_signals


def main() -> int:
    """Run one node's part of an attempt; returns 0 if its torchrun exited with 0."""
    # Before all imports that take time: a stop signal that arrives before its handler is installed
    # would kill the agent, and srun would then end the attempt.
    block_stop_signals()
    from jobs.console import begin_lines_with_time
    from jobs.node.agent import main as run

    begin_lines_with_time()
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
