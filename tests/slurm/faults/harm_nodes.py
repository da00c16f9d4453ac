"""Harms to the machines of a run: power, cables, the controller."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.runs import fact_reader

from ..kit import Run

AWAY_S = 60.0
BAD = "n2"


def faulty(harm: str, *overrides: str) -> tuple[str, ...]:
    """The overrides of a run in which the node BAD is bad, see faulty_node/sitecustomize.py."""
    setup = f"setup=['export PYTHONPATH={Path(__file__).with_name('faulty_node')}']"
    return (setup, f"launch.env.FAULTY_HOST={BAD}", f"launch.env.FAULTY_HARM={harm}", *overrides)


def nodes_of(run: Run) -> list[str]:
    """The nodes of the newest attempt; on the first one the batch shell runs, and mostly rank 0."""
    newest = run.dir.attempt(fact_reader.newest_opened(run.dir))
    return list(read_json(newest.plan)["nodes"])


def lose_power(run: Run, index: int) -> str:
    node = nodes_of(run)[index]
    run.cluster.power_off(node)
    return node


def cut_off(run: Run, index: int) -> str:
    """Pull a node's cable; returns its name.

    Its processes continue with the shared files, on the site until they use one of these.
    """
    node = nodes_of(run)[index]
    run.cluster.unplug(node)
    return node


def reconnect(run: Run, node: str) -> None:
    """Plug the cable in again, and make slurmd register with slurmctld."""
    run.cluster.plug(node)
    run.cluster.register(node)


@contextmanager
def controller_away(run: Run, seconds: float = AWAY_S) -> Iterator[None]:
    """Kill slurmctld, and start it again this many seconds after the block was entered.

    Not before it has saved the run's job: it saves every 5 s, but a disk can delay it for minutes.
    A slurmctld that does not know the job any more can start it no more, and the run is held.
    """
    began = run.dir.attempt(1).plan.stat().st_mtime
    run.cluster.wait_for(lambda: run.cluster.saved_at() > began, "slurmctld saved the job", 60)
    run.cluster.kill_controller()
    back = time.monotonic() + seconds
    try:
        yield
    finally:
        time.sleep(max(0.0, back - time.monotonic()))
        run.cluster.start_controller()
