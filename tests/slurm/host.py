"""What this machine offers to a test cluster: rights, programs, cgroups."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

# Daemons lie in sbin, which is not on every PATH.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "nsenter", "unshare")
_INSTALL = "apt-get install slurm-wlm slurm-wlm-basic-plugins munge iproute2"
_CGROUP_ROOT = Path("/sys/fs/cgroup")


def why_not() -> str | None:
    """Returns None where a cluster can be started, else the reason and its cure in one line."""
    missing = [program for program in _PROGRAMS if not shutil.which(program, path=PATH)]
    if missing:
        return f"{', '.join(missing)} not found: {_INSTALL}"
    if os.geteuid() != 0:
        return "a Slurm cluster of several hosts on one machine needs root: run it with sudo"
    probe = ["unshare", "--net", "--uts", "--mount", "--cgroup", "true"]
    done = subprocess.run(probe, check=False, capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        reason = done.stderr.strip()
        return f"no permission for namespaces ({reason}): in a container, start it --privileged"
    return None


def cgroup_version() -> int | None:
    """Returns the cgroup version that Slurm can track processes with here, None for neither."""
    if not os.access(_CGROUP_ROOT, os.W_OK):
        return None
    if (_CGROUP_ROOT / "cgroup.controllers").exists():
        # Older ones know v1 only. Source: Slurm's release notes, 22.05.
        return 2 if _slurm_version() >= (22, 5) else None
    return 1 if (_CGROUP_ROOT / "freezer/cgroup.procs").exists() else None


def default_proctrack() -> str:
    """Returns cgroup, which most real clusters use, or linuxproc where it cannot work."""
    return "cgroup" if cgroup_version() else "linuxproc"


def _slurm_version() -> tuple[int, int]:
    slurmd = shutil.which("slurmd", path=PATH)
    if not slurmd:
        return (0, 0)
    done = subprocess.run([slurmd, "-V"], check=False, capture_output=True, text=True, timeout=30)
    found = re.search(r"(\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)
