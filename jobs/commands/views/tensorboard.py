"""How to look at a run's TensorBoard files, also from a laptop that has none of them."""

from __future__ import annotations

import getpass
import os
import shlex
import socket

from ...rundir import RunDir
from ...spec import FormatError, Spec

# Many users share a login node, and with it TensorBoard's default port 6006: each gets another one.
FIRST_PORT, NUM_PORTS = 16006, 10000


def command(run_dir: RunDir) -> str | None:
    """Return the two commands for a run with log.tensorboard, one per line; None for another run.

    The first runs on this host. The second runs on a laptop: a tunnel by ssh to this host, because
    TensorBoard listens on the loopback interface only. Asks no name server.
    """
    try:
        has_files = Spec.read(run_dir.spec).log.tensorboard
    except (OSError, ValueError, TypeError, KeyError, FormatError):
        has_files = run_dir.tensorboard.is_dir()
    if not has_files:
        return None
    port = FIRST_PORT + os.getuid() % NUM_PORTS
    folder = shlex.quote(str(run_dir.tensorboard))
    return (
        f"tensorboard --logdir {folder} --port {port}\n"
        f"ssh -N -L {port}:localhost:{port} {_login()}  "
        f"# on your laptop, then open http://localhost:{port}"
    )


def _login() -> str:
    """Return `user@host` of this process; the host as it names itself."""
    try:
        user = getpass.getuser() + "@"
    except (KeyError, OSError):  # a user id without an entry; OSError from Python 3.13 on
        user = ""
    return shlex.quote(user + socket.gethostname())
