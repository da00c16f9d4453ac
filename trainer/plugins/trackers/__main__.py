"""Gives a run its end state in its trackers, where no rank could: it was held or cancelled.

    python -m trainer.plugins.trackers RUN_DIR STATE STEP

STEP: after the last one of the run.
"""

import os
import sys
from pathlib import Path
from typing import cast

from ...contract import RunDir, Spec
from .built_in import Run, State
from .hooks import Trackers

if __name__ == "__main__":
    run_dir, state, step = RunDir(Path(sys.argv[1])), cast(State, sys.argv[2]), int(sys.argv[3])
    trackers = Trackers()
    trackers.start(Run(run_dir, Spec.read(run_dir.spec)), step)
    trackers.finish(state)
    sys.stdout.flush()
    os._exit(0)  # a thread of a package may wait for a server
