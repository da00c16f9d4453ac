"""A rank of the trainer, as a fork of the fork server (`preload`).

    torchrun --start-method=forkserver --run-path -- .../fast_start/forked_rank.py RUN_DIR

A copy of the fork server runs this file, which does the same as `python -m trainer RUN_DIR`. torch
and the trainer are imported already.
"""

import atexit
import importlib
import multiprocessing
import os
import sys
import traceback
from multiprocessing import util
from typing import NoReturn


def leave_multiprocessing() -> None:
    """Let the user's code find the main process: it may choose a start method, or ask for its name.

    Private where multiprocessing has no function for it (Python 3.11 to 3.13).
    """
    multiprocessing.set_start_method(None, force=True)
    multiprocessing.current_process().name = "MainProcess"
    multiprocessing.process._parent_process = None  # type: ignore[attr-defined]


def main(argv: list[str]) -> None:
    """Train as a rank of the run directory `argv[0]`.

    Returns only after the run completed or stopped: torchrun waits for that, and then lets this
    process exit.
    """
    exit_now, rank_pid = os._exit, os.getpid()

    def exit_early(status: int) -> NoReturn:
        """Let the user's `os._exit(0)` exit with 1, in this process only.

        For torchrun a rank that exits with 0 before it returns runs: it would wait for minutes.
        """
        exit_now(1 if status == 0 and os.getpid() == rank_pid else status)

    try:
        os._exit = exit_early
        leave_multiprocessing()
        sys.argv[1:] = argv
        trainer = importlib.import_module("slurm_job_kit.trainer.__main__")
        sys.modules["__main__"] = trainer  # which the rank's worker processes import, too
        kept = trainer.main()
        # multiprocessing calls this after torchrun's answer, before the tear-down of the process.
        # The default argument keeps what must live until then.
        util.Finalize(None, lambda kept=kept: exit_now(0), exitpriority=100)
        atexit.register(exit_now, 0)  # Python 3.13 runs these first, also those of the user's code
    except BaseException:
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
