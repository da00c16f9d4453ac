"""A node that is faulty: put this folder on PYTHONPATH of the ranks.

FAULTY_HOST is the node. FAULTY_HARM is the fault in the preflight's matrix product: `wrong` (one
wrong number) or `stop` (SIGSTOP); with FAULTY_ATTEMPT in that attempt only. It stands for hardware
that cannot be broken on request; everything else is real.
"""

import os
import signal
import sys

PREFLIGHT = "slurm_job_kit.trainer.plugins.health.preflight"


def harm(torch):
    mm, what = torch.mm, os.environ["FAULTY_HARM"]

    def faulty(left, right):
        product = mm(left, right)
        if not is_faulty(os.environ):
            return product
        if what == "wrong":
            product[3, 5] += 1
        else:
            os.kill(os.getpid(), signal.SIGSTOP)
        return product

    torch.mm = faulty


class AtPreflight:
    """Finds no module. It does the harm when Python looks for the preflight, after torch."""

    def find_spec(self, name, path=None, target=None):
        if name == PREFLIGHT:
            sys.meta_path.remove(self)
            import torch

            harm(torch)


def is_faulty(env):
    is_now = env.get("FAULTY_ATTEMPT", env.get("KIT_ATTEMPT")) == env.get("KIT_ATTEMPT")
    return env["FAULTY_HOST"] == env.get("SLURMD_NODENAME") and is_now


if "FAULTY_HARM" in os.environ:
    sys.meta_path.insert(0, AtPreflight())
