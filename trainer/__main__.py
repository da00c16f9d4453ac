"""Start of every rank: install the stop signals, call the plugins, import torch, train.

    python -m jobs freeze configs/resnet.yaml train.epochs=3        (prints RUN_DIR)
    torchrun --standalone --nproc-per-node=2 -m trainer RUN_DIR     (begins, or resumes)
    torchrun --nnodes=2 --node-rank=0 --master-addr=10.0.0.1 --master-port=29400 \
        --nproc-per-node=1 -m trainer RUN_DIR                       (on each machine)
"""

import os
import runpy
import sys
import time

if __package__ == "trainer":  # typed in a clone: the kit's own name for this module is another
    runpy.run_module("slurm_job_kit.trainer", run_name="__main__", alter_sys=True)

from .process.stop import StopSignal


def main() -> object:
    """Run one rank until the run completed, or stopped and saved; a failure ends the process.

    Returns what must live until the process exits, by os._exit: see `trainer.training.run.run`.
    """
    started = time.time()
    stop = StopSignal()
    stop.install()
    # cuBLAS reads it when CUDA starts; without it its sums may change from run to run,
    # and torch refuses matrix products where train.deterministic is set.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # After the signals: a stop that arrives before its handler is installed is lost.
    from .contract import begin_lines_with_time
    from .hooks import callbacks
    from .process.watcher import Pulse

    begin_lines_with_time()
    pulse = Pulse()
    of_plugins = callbacks(pulse)
    from .training.run import run

    return run(sys.argv[1:], stop, started, pulse, of_plugins)


if __name__ == "__main__":
    if not os.environ.get("PYTHONHASHSEED", "").isdecimal():  # torchrun by hand: no agent set it
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, sys.orig_argv)
    kept = main()
    os._exit(0)
