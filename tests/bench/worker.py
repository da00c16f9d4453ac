"""One process of a bench: measure, and write the figures to a file.

Under torchrun it is a rank: it joins the process group first.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.catalogue import chosen
from tests.core.run_files import write_json

if TYPE_CHECKING:
    from tests.bench.rounds import Figure


def main(name: str, folder: Path) -> None:
    """Measure a bench of the catalogue, by ranks that torchrun started or in this process alone."""
    (bench,) = chosen([name])
    module = importlib.import_module(f"tests.bench.{bench.module}")
    measure, figures = module.measure, folder / f"{name}.json"
    if "RANK" in os.environ:
        _measure_as_rank(measure, figures, may_use_gpu="gpu" in bench.sets)
    else:
        # So that a bench that takes too long ends the runs that it has started.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        (folder / "work").mkdir()
        _write(measure(folder / "work"), figures)


def _measure_as_rank(
    measure: Callable[[Any], Iterable[Figure]], path: Path, may_use_gpu: bool
) -> None:
    """Measure, and leave without a tear-down, as the trainer does."""
    import torch
    import torch.distributed as dist

    from slurm_job_kit.trainer.process import context
    from tests.bench.place import Place

    torch.set_num_threads(1)
    distributed = context.DistributedContext.from_env(os.environ)
    device = context.choose_device(distributed)[0] if may_use_gpu else torch.device("cpu")
    context.init_process_group(device)
    place = Place(distributed, device, path.parent)
    _write(measure(place), path if distributed.is_first else None)
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _write(figures: Iterable[Figure], path: Path | None) -> None:
    """Write each figure as soon as it is known, for a bench that takes too long."""
    known = []
    for figure in figures:
        known.append(figure.record())
        if path is not None:
            write_json(path, known)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
