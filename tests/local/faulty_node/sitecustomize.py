"""A node or a rank that is faulty: put this folder on PYTHONPATH of the ranks.

FAULTY_HOST or FAULTY_RANK says where, FAULTY_HARM what happens in the preflight's matrix product:
`wrong` (one number of it), `stop` (the process stands still) or `die`; with FAULTY_ATTEMPT in that
attempt only. It stands for hardware that cannot be broken on request; everything else is real.
"""

import os
import signal
import socket
import sys

PREFLIGHT = "trainer.health.preflight"


def harm(torch):
    """Have every matrix product of this process do harm."""
    mm, what = torch.mm, os.environ["FAULTY_HARM"]

    def faulty(left, right):
        product = mm(left, right)
        if what == "wrong":
            product[3, 5] += 1
        else:
            os.kill(os.getpid(), signal.SIGSTOP if what == "stop" else signal.SIGKILL)
        return product

    torch.mm = faulty


class AtPreflight:
    """Finds no module; it harms when the preflight is looked for, which is after torch."""

    def find_spec(self, name, path=None, target=None):
        if name == PREFLIGHT:
            sys.meta_path.remove(self)
            import torch

            harm(torch)


def is_faulty(env):
    """Whether this process is where and when the fault is."""
    is_here = env.get("FAULTY_HOST") == socket.gethostname()
    is_me = "RANK" in env and env.get("FAULTY_RANK") == env["RANK"]
    is_now = env.get("FAULTY_ATTEMPT", env.get("KIT_ATTEMPT")) == env.get("KIT_ATTEMPT")
    return (is_here or is_me) and is_now


if is_faulty(os.environ):
    sys.meta_path.insert(0, AtPreflight())
