"""Whether the checkpoints that a run keeps fit on its disk, and into the user's quota."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..contract import Checkpoint, checkpoint_names

QUOTA_LIMIT_S = 5.0  # the command asks a file server, which may not answer
# Where the kernel shows each mounted file system. Source: proc(5), /proc/PID/mounts.
MOUNTS = Path("/proc/self/mounts")


@dataclass(frozen=True)
class Shortage:
    """What does not fit. is_error: not even two checkpoints fit, and a save needs old and new."""

    what: str
    is_error: bool


def shortage(
    checkpoints: Path, size: int, num_kept: int, is_quota_asked: bool = True
) -> Shortage | None:
    """Return what does not fit in the folder of checkpoints; None where everything fits.

    size: bytes of a checkpoint, or what is known of them.
    num_kept: how many are kept; one more is there while it is written.
    is_quota_asked: also compare with the user's quota. Raises: OSError.
    """
    left, where = shutil.disk_usage(checkpoints.parent).free, "are free"
    quota = quota_left(checkpoints.parent) if is_quota_asked else None
    if quota is not None and quota < left:
        left, where = quota, "are left of your quota"
    left += (present := _size_of_committed(checkpoints))
    here = f", {_gib(present)} of them with this run's checkpoints" if present else ""
    if 2 * size > left:
        what = "at least two checkpoints, the old and the new one, are on the disk in a save"
        return Shortage(f"{what}: {_gib(2 * size)}; {_gib(left)} {where}{here}", True)
    count = num_kept + 1
    if count * size > left:
        what = f"{count} checkpoints need {_gib(count * size)}"
        return Shortage(f"{what}, but {_gib(left)} {where}{here}", False)
    return None


def num_kept(spec: Checkpoint, total_steps: int, epochs: int) -> int:
    """Return how many checkpoints are there when the training ends."""
    kept = spec.keep_last + (spec.best is not None)
    kept += total_steps // spec.keep_every_steps if spec.keep_every_steps else 0
    return kept + (epochs // spec.keep_every_epochs if spec.keep_every_epochs else 0)


def quota_left(folder: Path) -> int | None:
    """Return the bytes that this user's quota leaves on a folder's file system.

    None where there is no limit, or no command that knows it: `lfs` for Lustre, else `quota`. Sites
    with other tools are not asked.
    """
    device, mount, kind = _mount_of(folder)
    if kind == "lustre":
        # Source: lfs-quota(1), -q: no header: path, kbytes, quota, limit. Behind a path of more
        # than 15 characters lfs breaks the line (lfs.c).
        words = _output(["lfs", "quota", "-q", "-u", str(os.getuid()), mount]).split()
        return _bytes_left([" ".join(words)] if words[:1] == [mount] else [])
    # Source: quota(1), -w: one line for each file system: device, KiB blocks, quota, limit.
    text = _output(["quota", "-w", "-u"])
    return _bytes_left([line for line in text.splitlines() if line.split()[:1] == [device]])


def _bytes_left(lines: Iterable[str]) -> int | None:
    """Return the bytes left by a line with name, used KiB, soft and hard limit (0: none).

    A `*` behind the used KiB means that they are above the soft limit.
    """
    for line in lines:
        used, soft, hard, *_ = [*line.split()[1:4], "", "", ""]
        limits = [int(word) for word in (soft, hard) if word.isdigit() and int(word) > 0]
        if used.rstrip("*").isdigit() and limits:
            return max(0, max(limits) - int(used.rstrip("*"))) * 1024
    return None


def _mount_of(folder: Path) -> tuple[str, str, str]:
    """Return device, mount point and type of the file system that a folder lies on."""
    place, best = folder.resolve(), ("", "", "")
    with contextlib.suppress(OSError):
        for line in MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines():
            device, mount, kind = line.split()[:3]
            if place.is_relative_to(mount) and len(mount) >= len(best[1]):
                best = (device, mount, kind)
    return best


def _output(argv: list[str]) -> str:
    """Return what a command prints; "" where it is missing or does not answer.

    `quota` exits with 1 above a limit, so the exit status says nothing.
    """
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=QUOTA_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _size_of_committed(checkpoints: Path) -> int:
    size = 0
    with contextlib.suppress(FileNotFoundError):
        for name in checkpoint_names(checkpoints):
            size += sum(file.stat().st_size for file in (checkpoints / name).iterdir())
    return size


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"
