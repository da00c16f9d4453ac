"""The rights, programs and cgroups that this machine has for a test cluster.

KIT_TEST_SLURM selects the Slurm: unset for the installed one, 24.11 or 26.05 for one that
`tests.slurm.second` fetches, or the folder (`--prefix`) of one that you built.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

# Daemons lie in sbin, which is not on every PATH.
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "nsenter", "unshare")
_INSTALL = "apt-get install slurm-wlm slurm-wlm-basic-plugins munge iproute2"
# What the second shape needs on top: accounting, and the file client.
_SITE_PROGRAMS = ("slurmdbd", "mariadbd", "gcc", "pkg-config", "setpriv")
_SITE_INSTALL = "slurmdbd slurm-wlm-mysql-plugin mariadb-server gcc pkg-config libfuse3-dev"
_CGROUP_ROOT = Path("/sys/fs/cgroup")


def version_folder(version: str) -> Path:
    return Path(__file__).resolve().parents[2] / ".slurm" / version


def prefix_of(chosen: str) -> Path | None:
    """Returns the folder that KIT_TEST_SLURM stands for: a version's or, absolute, itself."""
    if not chosen:
        return None
    return Path(chosen) if os.path.isabs(chosen) else version_folder(chosen)


def _path_with(prefix: Path | None) -> str:
    return f"{prefix}/sbin:{prefix}/bin:{_SYSTEM_PATH}" if prefix else _SYSTEM_PATH


# The folder with bin, sbin and lib of the Slurm to test with; None for the installed one.
PREFIX = prefix_of(os.environ.get("KIT_TEST_SLURM", ""))
PATH = _path_with(PREFIX)
# Whether the cluster has its second shape, see user_site.py.
IS_SITE = os.environ.get("KIT_TEST_SITE") == "1"
# What starts a program with mounts of its own, as a container does; an ordinary user needs more.
OWN_MOUNTS = f"unshare {'--map-root-user ' * IS_SITE}--mount"


def why_not(prefix: Path | None = PREFIX) -> str | None:
    """Returns None if a cluster can be started, else the reason and the fix in one line."""
    if prefix and not (prefix / "sbin/slurmd").exists():
        reason = f"no Slurm in {prefix}: unset KIT_TEST_SLURM"
        is_fetched = prefix == version_folder(prefix.name)
        return reason + f", or run make test-on-slurm SLURM={prefix.name}" * is_fetched
    path = _path_with(prefix)
    programs = _PROGRAMS + _SITE_PROGRAMS * IS_SITE
    missing = [program for program in programs if not shutil.which(program, path=path)]
    if missing:
        return f"{', '.join(missing)} not found: {_INSTALL}{f' {_SITE_INSTALL}' * IS_SITE}"
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
        return 2
    return 1 if (_CGROUP_ROOT / "freezer/cgroup.procs").exists() else None


def installed_version() -> tuple[int, int]:
    """Returns the version of the Slurm to test with, (0, 0) where there is none."""
    slurmd = shutil.which("slurmd", path=PATH)
    if not slurmd:
        return (0, 0)
    done = subprocess.run([slurmd, "-V"], check=False, capture_output=True, text=True, timeout=30)
    return slurm_version(done.stdout)


def slurm_version(text: str) -> tuple[int, int]:
    """Returns (22, 5) for `slurm-wlm 22.05.8`."""
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)
