"""The models of the fault tests: Paced's, with harms that a test asks for by variables of a run.

Their parameters have the names of Paced's, because the digest of the weights includes the names. So
one reference run serves all tests.
"""

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from slurm_job_kit.jobs.base import files
from slurm_job_kit.jobs.contract.records.nodes import node_name
from tests import parts

from ..paced import Paced

_LOOK_S = 0.05
_WRITER = "checkpoint-writer"  # the thread's name; the main thread's writes are not disturbed
FAILING_CALL = 4  # of an attempt; the first is the throw-away pass
BLOCK_BYTES = 256 * 2**20
PASS_S = 0.3


def file_of(variable: str) -> Path:
    return Path(os.environ.get(variable, "/nowhere"))


def before_fsync(act: Callable[[int], None]) -> None:
    """Call `act` with the descriptor before each fsync of this process."""
    fsync = os.fsync

    def changed(fd: Any) -> None:
        act(fd)
        fsync(fd)

    os.fsync = changed


class AtWill(Paced):
    """Paced, and by variable:

    START_FILE: it is not built while this file exists.
    DISK_FILE: no file of a checkpoint is fsynced while this file exists.
    ERRNO_FILE: in the first attempt that fsync fails with the error in this file.
    TROUBLE_FOLDER: the rank with a file of its number there loops for ever, once.
    CRASH_NODE, CRASH_RANK: there a batch fails.
    EATING: rank 1 runs out of memory: "allocator 1 2" or "kernel 1", with the attempts.

    The two files of the disk may hold the name of the only file of a checkpoint that is meant,
    behind the error's if there is one.
    """

    def __init__(self) -> None:
        while files.exists(file_of("START_FILE")):
            time.sleep(_LOOK_S)
        super().__init__()
        before_fsync(_disturb)
        self._calls, attempt = 0, os.environ.get("KIT_ATTEMPT")
        self._fails = os.environ.get("CRASH_NODE") == node_name() or (
            os.environ.get("CRASH_RANK") == os.environ.get("RANK", "none")
        )
        self._what, *attempts = os.environ.get("EATING", "nothing").split()
        self._is_hungry = os.environ.get("RANK") == "1" and attempt in attempts

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            loop_if_asked()
        self._calls += 1
        if self._calls == FAILING_CALL and self._fails:
            raise RuntimeError("out of cheese")
        if self._calls == FAILING_CALL and self._is_hungry:
            if self._what == "allocator":
                torch.empty(2**50, dtype=torch.uint8)
            blocks = []
            while True:  # until the kernel kills the rank
                blocks.append(b"x" * BLOCK_BYTES)
        return super().forward(images)


def _disturb(fd: int) -> None:
    if not threading.current_thread().name.startswith(_WRITER):
        return
    while _asked("DISK_FILE", fd) is not None:
        time.sleep(_LOOK_S)
    if os.environ["KIT_ATTEMPT"] == "1" and (error := _asked("ERRNO_FILE", fd)):
        number = getattr(errno, error)
        raise OSError(number, os.strerror(number))


def _asked(variable: str, fd: int) -> str | None:
    """The error in a test's file, or nothing; None unless it exists and means this open file."""
    try:
        words = files.read_text(file_of(variable)).split()
    except FileNotFoundError:
        return None
    error = words.pop(0) if words and words[0] in errno.errorcode.values() else ""
    name = os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))
    return error if words in ([], [name]) else None


def loop_if_asked() -> None:
    """Never return, if a test asks for that; a later attempt goes on."""
    trouble = file_of("TROUBLE_FOLDER") / os.environ["RANK"]
    if files.exists(trouble):
        trouble.unlink()
        loop_for_ever()


def loop_for_ever() -> None:
    while True:
        pass


def images() -> Any:
    """The images of tests.parts; the constructor loops if that is asked."""
    loop_if_asked()
    return parts.images()


class Phased(torch.nn.Module):
    """Paced; slow in both passes while PACE_FILE exists; PHASE_FILE.<rank> names the pass."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Paced().model
        before_fsync(lambda _: time.sleep(PASS_S * files.exists(file_of("PACE_FILE"))))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        enter("forward" if self.training else "evaluation")
        logits: torch.Tensor = self.model(images)
        if logits.requires_grad:
            logits.register_hook(lambda _: enter("backward"))
        return logits


def enter(phase: str) -> None:
    """Write the name of the pass to the phase file, then pause."""
    if files.exists(file_of("PACE_FILE")):
        Path(f"{os.environ['PHASE_FILE']}.{os.environ['RANK']}").write_text(phase)
        time.sleep(PASS_S)
