"""The node agent: receives the stop signals of one node, starts torchrun, stops the ranks.

    python -m jobs.node RUN_DIR ATTEMPT --node-rank=N

Slurm signals different processes on different sites: the whole process tree (proctrack/linuxproc),
the process group, or only the agent (proctrack/cgroup). So only the agent handles stop signals.
torchrun and the ranks inherit *ignored* stop signals: at SIGUSR1 torchrun would die and orphan its
ranks, and at SIGTERM it would kill them after 30 s and exit with 1.

Each rank installs its own handler first of all. A signal that arrives before that is lost, so the
agent sends the stop every second. The trainer stops at SIGTERM. A user's own script stops at
launch.stop_signal; with `none` the agent never signals it. The inherited ignored signals protect a
script that is still starting from a signal that Slurm sends to the whole tree.

This file must be readable for Python 3.6, and imports the kit's modules after it has checked the
version: launch.python, or the python3 of an image, may be older than the kit needs.
"""

import contextlib
import os
import socket
import sys
import time
from pathlib import Path

OLDEST = (3, 11)


def refuse_old_python(argv: "list[str]", version: "tuple[int, ...]") -> None:
    """Exit with the reason if this interpreter is too old; `attempt.close` reads it, too.

    argv: as above. The path is that of AttemptDir.agent_error, which an old Python cannot import.
    """
    if version >= OLDEST:
        return
    wanted, running = (".".join(map(str, each)) for each in (OLDEST, version))
    what = f"{sys.executable} is Python {running}, and agents and ranks need {wanted} or newer"
    host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    reason = f"{host}: launch.python: {what}"
    name = f"agent-{int(argv[-1].rpartition('=')[2]):05d}.error"
    path = Path(argv[0], f"attempt-{argv[1]}", name)
    with contextlib.suppress(OSError), open(path, "x") as file:
        file.write(f"{reason}\n")
    hint = "set launch.python to a newer interpreter of the node or the image"
    sys.exit(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {reason}\n  hint: {hint}")


def main() -> int:
    """Run one node's part of an attempt; returns 0 if its torchrun exited with 0."""
    refuse_old_python(sys.argv[1:], sys.version_info[:3])
    # Before all imports that take time: a stop signal that arrives before its handler is installed
    # would kill the agent, and srun would then end the attempt.
    from ..base.stop_signals import block_stop_signals

    block_stop_signals()
    from ..base.console import begin_lines_with_time, escape_output
    from .agent import main as run

    begin_lines_with_time()
    escape_output()
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
