"""The node agent: owns the stop signals of one node, starts torchrun, tells the ranks to stop.

    srun python -m jobs.node RUN_DIR ATTEMPT --rdzv-endpoint ADDRESS:PORT

Slurm reaches different processes on different sites: the whole tree (proctrack/linuxproc), the
process group, or only this one (proctrack/cgroup). So only this one listens. torchrun and the
ranks inherit *ignored* stop signals: torchrun would orphan its ranks at SIGUSR1, and at SIGTERM
gives them 30 s and reports failure. Each rank installs its own handler as its first act; the
agent repeats the stop every second, because one that comes before is lost. What stops a rank is
SIGTERM for our trainer, and what launch.stop_signal says for somebody's own script: one that knows
of no stop is never signalled, and an inherited ignored signal does not kill one that is starting.
"""

from __future__ import annotations

import sys

from jobs.node.stop_signals import hold_back


def main() -> int:
    """Run one node's share of an attempt; 0 if its torchrun ended well."""
    # First of all: until the handlers stand, the agent would die of a stop, and the job with it.
    hold_back()
    from jobs.console import begin_lines_with_time
    from jobs.node.agent import main as run

    begin_lines_with_time()
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
