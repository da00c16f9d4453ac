"""Harms to the files of a run: damage, loss, a disk that is full, read-only or broken."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_job_kit.jobs.contract.checkpoint.names import checkpoint_names
from slurm_job_kit.jobs.contract.rundir import RunDir

from ..kit import Run
from . import harm_slurm

_PAGE = 4096


def pause(run: Run) -> None:
    """Warn the run, so that it saves and is requeued, and hold it in the queue."""
    before = harm_slurm.restarts(run)
    run.cluster.run("scancel", "--signal=USR1", run.job_id)
    harm_slurm.wait_for_restarts(run, before + 1)
    run.cluster.run("scontrol", "hold", run.job_id)
    run.cluster.wait_for(lambda: not run.cluster.job_processes(), "no process of the job", 60)


def stop(run: Run) -> None:
    """Cancel the run after it has saved, however long that took; the run has ended then."""
    pause(run)
    harm_slurm.scancel(run)
    run.wait("CANCELLED")


def release(run: Run) -> None:
    """Let a paused run start again."""
    run.cluster.run("scontrol", "release", run.job_id)


def truncate(path: Path) -> None:
    """Cut the second half off, as an interrupted copy does."""
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    """Make the file empty, as some file systems do after a power failure."""
    os.truncate(path, 0)


def flip_a_bit(path: Path) -> None:
    """Flip one bit in the middle."""
    with open(path, "r+b") as file:
        place = path.stat().st_size // 2
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def zero_a_page(path: Path) -> None:
    """Overwrite a whole page with zeros, as a lost write does."""
    with open(path, "r+b") as file:
        file.seek(_PAGE)
        file.write(bytes(_PAGE))


def remove(path: Path) -> None:
    """Delete a file or a whole folder."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


Damage = Callable[[Path], None]
DAMAGES: tuple[Damage, ...] = (truncate, empty, flip_a_bit, zero_a_page, remove)


def committed(run_dir: RunDir) -> list[str]:
    """The names of the committed checkpoints, newest first."""
    return checkpoint_names(run_dir.checkpoints)


def shards(checkpoint: Path) -> list[str]:
    """The names of the files of a checkpoint that have tensors, one for each rank that writes."""
    return sorted(path.name for path in checkpoint.glob("rank-*.safetensors"))


def damage_newest(
    run_dir: RunDir, *damages: Damage, file: str = "rank-00000.safetensors"
) -> list[str]:
    """Damage a file in the newest checkpoints, one harm each; returns their names, newest first."""
    names = committed(run_dir)[: len(damages)]
    for name, damage in zip(names, damages, strict=True):
        damage(run_dir.checkpoints / name / file)
    return names


def purge(run_dir: RunDir) -> str:
    """Delete the files that a run does not need, and its newest checkpoint; returns its name."""
    (lost,) = damage_newest(run_dir, remove)
    run_dir.owner.unlink(missing_ok=True)
    logs = run_dir.rank_log(0).parent
    for path in (run_dir.checkpoints / "latest", run_dir.attempts, logs, run_dir.provenance):
        if path.exists():  # a purge before this one may have taken it
            remove(path)
    return lost


def fill(folder: Path) -> Path:
    """Take every free block of a file system; returns the file to delete."""
    filler = folder / "filler"
    with open(filler, "ab", buffering=0) as file:
        for size in (2**20, _PAGE, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return filler


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[Path]:
    """A separate file system at `folder`.

    It must be mounted before the nodes start: their mount trees are copies, which do not get later
    mounts. All nodes see changes of its contents.
    """
    folder.mkdir(parents=True, exist_ok=True)
    argv = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder)]
    subprocess.run(argv, check=True, capture_output=True, timeout=30)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=30)
