"""The run of the fault tests: three ranks on three nodes, slow until `hurry`."""

import fcntl
import hashlib
import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from slurm_job_kit.jobs.contract.rundir import RunDir

from ..host import IS_SITE
from ..kit import PACED, Kit, Run
from ..user_site import QOS_OF_PARTITION

# Of paced.yaml: three ranks, because two hide a wrong order of summation (a + b = b + a).
STEPS_PER_EPOCH = 29
STEPS = 2 * STEPS_PER_EPOCH
AT_ONCE = Path("/nowhere")  # no file: the run is fast
# The site's shape chooses another QOS than submit can know; a job's start then asks for settings.
NAMED_QOS = (f"slurm.qos={QOS_OF_PARTITION['batch']}",) if IS_SITE else ()
# The bits depend on the number of ranks only, and one node imports torch once for all of them.
_PLACES = ("slurm.nodes=", "launch.nproc_per_node=")
_ON_ONE_NODE = ("slurm.nodes=1", "launch.nproc_per_node=3")
# The keys on which weights, metrics and the best checkpoint depend.
_MATTERS = ("train.", "slurm.nodes=", "launch.nproc_per_node=", "log.every", "checkpoint.best=")


@dataclass(frozen=True)
class Paced:
    """A run that is slow, at the pace of tests.slurm.paced, until `hurry`."""

    run: Run
    pace: Path

    def hurry(self) -> None:
        self.pace.unlink(missing_ok=True)

    def finish(self, state: str = "COMPLETED") -> dict[str, str]:
        """Let the run be fast and wait for the end of the job; returns the job's record."""
        self.hurry()
        return self.run.wait(state)


def start(kit: Kit, *overrides: str, pace: Path | None = None) -> Paced:
    """Submit the standard run; a later override wins. Without `pace` the run has its own file."""
    if pace is None:
        pace = kit.runs_root / f"pace-{secrets.token_hex(4)}"
        pace.parent.mkdir(parents=True, exist_ok=True)
        pace.touch()
    return Paced(kit.submit(PACED, f"launch.env.PACE_FILE={pace}", *overrides), pace)


class ReferenceRuns:
    """Reference runs without faults, each trained once; only their files are used afterwards.

    All pytest processes that share the folder `kit.runs_root` share the runs. A file for each run
    is locked while one process trains it; then the file has the job id and the run directory.
    """

    def __init__(self, kit: Kit) -> None:
        kit.runs_root.mkdir(parents=True, exist_ok=True)
        self._kit = kit

    def __call__(self, *overrides: str) -> Run:
        """The reference run for these overrides; overrides without effect on it are ignored."""
        key = tuple(word for word in overrides if word.startswith(_MATTERS))
        name = hashlib.sha256("\n".join(key).encode()).hexdigest()
        with open(self._kit.runs_root / f"{name}.trained", "a+") as trained:
            fcntl.flock(trained, fcntl.LOCK_EX)
            trained.seek(0)
            if not (known := trained.read()):
                is_placed = any(word.startswith(_PLACES) for word in key)
                words = () if is_placed else _ON_ONE_NODE
                run = start(self._kit, *words, *key, pace=AT_ONCE).run
                run.wait()
                known = json.dumps([run.job_id, str(run.dir.path)])
                trained.write(known)
        job_id, path = json.loads(known)
        return Run(self._kit.cluster, job_id, RunDir(Path(path)))
