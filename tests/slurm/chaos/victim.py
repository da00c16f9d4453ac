"""A run of the campaign, in its present job."""

import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.runs.fact_reader import newest_opened

from ..faults import harm_nodes, harm_processes
from ..faults.scenario import Paced, start
from ..kit import PACED, Kit, Run
from .sites import Site

# Settings that make each harm possible: a warning of the time limit while the run is slow, older
# checkpoints to fall back on, a short limit for a hang, a large budget for crashes.
_NEEDS = (
    "slurm.signal_lead_s=110",
    "checkpoint.every_steps=5",
    "launch.hang_timeout_s=10",
    "launch.max_crashes=9",
)


@dataclass
class Victim:
    """A run of the campaign; after a resume, or as its successor, it has another job."""

    kit: Kit
    site: Site
    paced: Paced
    trouble: Path  # of tests.slurm.faults.model, as the next one
    disk: Path
    dice: random.Random
    put_aside: list[str] = field(default_factory=list)  # files of the run that harms moved away

    @property
    def run(self) -> Run:
        return self.paced.run

    def resume(self) -> None:
        self.paced = Paced(self.kit.resume(self.run), self.paced.pace)

    def follow(self) -> None:
        """Switch to the job of the newest attempt: a successor has another id."""
        plan = read_json(self.run.dir.attempt(self.attempt()).plan) or {}
        job_id = plan.get("job_id", self.run.job_id)
        self.paced = Paced(Run(self.run.cluster, job_id, self.run.dir), self.paced.pace)

    def pace(self, seconds_per_step: float) -> None:
        """Make the run slow, at this pace, from now on."""
        self.paced.pace.write_text(str(seconds_per_step))

    def num_ranks(self) -> int:
        """The number of ranks of the newest attempt, one on each node."""
        return len(harm_nodes.nodes_of(self.run))

    def attempt(self) -> int:
        return newest_opened(self.run.dir)

    def wait_for_attempt(self) -> None:
        """Wait until an attempt runs and, if the run has a successor, until that is queued."""

        def is_open() -> bool:
            closed = [attempt["attempt"] for attempt in self.run.attempts()]
            return self.attempt() > max(closed, default=0)

        def has_successor() -> bool:
            noted = read_json(self.run.dir.successor)
            return bool(noted) and noted["after"] == self.run.job_id

        self.run.wait_for(is_open, "an attempt under way")
        self.follow()
        if self.site.has_successor:
            self.run.wait_for(has_successor, "a successor")

    @contextmanager
    def another_attempt(self) -> Iterator[None]:
        """After the block wait until there is a newer attempt, and switch to its job."""
        before = self.attempt()
        yield
        self.run.wait_for(lambda: self.attempt() > before, f"an attempt after {before}")
        self.follow()

    def some_rank(self) -> harm_processes.Process:
        """Wait until all ranks train; returns one of them."""

        def all_ranks() -> list[harm_processes.Process]:
            ranks = harm_processes.of_role(self.run, "rank")
            return ranks if len(ranks) == self.num_ranks() else []

        return self.dice.choice(self.run.wait_for(all_ranks, "all ranks"))

    def trains(self) -> Run:
        """Wait until all ranks train; returns the run in its present job."""
        self.some_rank()
        return self.run

    def finish(self) -> None:
        """Let the run be fast, and wait until no job of the run is left, successors included."""
        self.paced.hurry()
        self.run.wait_for(lambda: not self.run.cluster.job_ids(), "the end of all jobs")
        self.follow()


def begin(kit: Kit, site: Site, strategy: str, dice: random.Random) -> Victim:
    """Submit a run for a draw in the way of its site."""
    trouble = kit.runs_root / f"trouble-{secrets.token_hex(4)}"
    trouble.mkdir(parents=True)
    disk, pace = trouble / "disk-stands-still", trouble / "pace"
    pace.touch()
    env = (f"launch.env.TROUBLE_FOLDER={trouble}", f"launch.env.DISK_FILE={disk}")
    words = (f"train.strategy={strategy}", *_NEEDS, *env, *site.overrides)
    if site.options:
        ours = [word for word in words if not word.startswith("slurm.")]
        script = ("slurm/ddp.sbatch", PACED, *ours, f"launch.env.PACE_FILE={pace}")
        paced = Paced(kit.sbatch(*site.options, *script), pace)
    else:
        paced = start(kit, *words, pace=pace)
    return Victim(kit, site, paced, trouble, disk, dice)
