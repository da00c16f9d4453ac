"""Steps of argv[1] seconds, argv[2] of them; saves the number of the last one at a stop only."""

import os
import sys
import time
from pathlib import Path

import torch.distributed as dist

from configs.own_script.kit_stop import Stop

stop, state = Stop(), Path("state.txt")
seconds, total = float(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo")
step = int(state.read_text()) if state.exists() else 0
while step < total:
    step += 1
    print(f"begins step {step} at {time.time():.1f}", flush=True)
    time.sleep(seconds)
    dist.barrier()
    stop.progress(step, total)
    if stop.should_stop(step):
        if dist.get_rank() == 0:
            state.with_suffix(".tmp").write_text(str(step))
            os.replace(state.with_suffix(".tmp"), state)
        stop.saved(step)
        stop.stopped()
stop.completed()
