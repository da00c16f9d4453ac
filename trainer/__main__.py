"""Start of every rank: install the stop signals, start the watchdog, import torch, train.

    torchrun --standalone --nproc-per-node=2 -m trainer configs/resnet.yaml train.epochs=3
    torchrun --standalone --nproc-per-node=2 -m trainer runs/resnet/latest      (resumes)
    torchrun --nnodes=2 --node-rank=0 --master-addr=10.0.0.1 --master-port=29400 \
        --nproc-per-node=1 -m trainer configs/resnet.yaml                       (each machine)
"""

import os
import sys
import time

from slurm_job_kit.trainer.stop import StopSignal


def main() -> object:
    """Run one rank until the run completed, or stopped and saved; a failure ends the process.

    Returns what must live until the process exits, by os._exit: see `trainer.run.run`.
    """
    started = time.time()
    stop = StopSignal()
    stop.install()
    # cuBLAS reads it when CUDA starts; without it its sums may change from run to run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # After the signals: a stop that arrives before its handler is installed is lost.
    from slurm_job_kit.jobs.console import begin_lines_with_time
    from slurm_job_kit.trainer.health.watchdog import Watchdog

    begin_lines_with_time()
    with Watchdog.of_process(os.environ) as watchdog:
        watchdog.open_early(sys.argv[1:], os.environ)
        from slurm_job_kit.trainer.run import run

        return run(sys.argv[1:], stop, started, watchdog)


if __name__ == "__main__":
    kept = main()
    os._exit(0)
