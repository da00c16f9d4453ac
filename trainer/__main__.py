"""Start of every rank: install the stop signals, call the plugins, import torch, train.

    python -m jobs freeze configs/resnet.yaml train.epochs=3        (prints RUN_DIR)
    torchrun --standalone --nproc-per-node=2 -m trainer RUN_DIR     (begins, or resumes)
    torchrun --nnodes=2 --node-rank=0 --master-addr=10.0.0.1 --master-port=29400 \
        --nproc-per-node=1 -m trainer RUN_DIR                       (on each machine)
"""

import os
import pkgutil
import runpy
import sys
import time

if __package__ == "trainer":  # typed in a clone: the kit's own name for this module is another
    runpy.run_module("slurm_job_kit.trainer", run_name="__main__", alter_sys=True)


def list_once(folder: str) -> None:
    """Take the names in a folder, which does not change, for all that can be imported of it.

    Python asks the disk for the folder's time at each import, also at those of torch.
    """
    finder, names = pkgutil.get_importer(folder), {x.partition(".")[0] for x in os.listdir(folder)}
    assert finder is not None
    find = finder.find_spec
    finder.find_spec = lambda name, *x: find(name, *x) if name in names else None  # type: ignore


def main() -> object:
    """Run one rank until the run completed, or stopped and saved; a failure ends the process.

    Returns what must live until the process exits, by os._exit: see `trainer.training.run.run`.
    """
    from .process.stop import StopSignal

    stop = StopSignal()
    stop.install()
    # cuBLAS reads it when CUDA starts; without it its sums may change from run to run,
    # and torch refuses matrix products where train.deterministic is set.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # After the signals: a stop that arrives before its handler is installed is lost.
    from .contract import begin_lines_with_time, begin_rank
    from .hooks import callbacks
    from .process.watcher import Pulse

    begin_lines_with_time()
    if "KIT_AGENT_PID" in os.environ:
        begin_rank()
    started = time.time()
    pulse = Pulse()
    of_plugins = callbacks(pulse)
    from .training.run import run

    return run(sys.argv[1:], stop, started, pulse, of_plugins)


if __name__ == "__main__":
    if not os.environ.get("PYTHONHASHSEED", "").isdecimal():  # torchrun by hand: no agent set it
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, sys.orig_argv)
    if "KIT_AGENT_PID" in os.environ:
        for each in (os.getcwd(), f"{os.environ['KIT_RUN_DIR']}/code"):  # both the frozen code
            list_once(each)
    kept = main()
    os._exit(0)
