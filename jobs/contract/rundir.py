"""The run directory: the path of each file in it.

Each file has one writer, and there are no locks: on a network file system appends of several
writers interleave, and flock may succeed for two hosts at once. jobs.contract.records has the
content of the files. Standard library only; the trainer imports this module.
"""

from dataclasses import dataclass
from pathlib import Path

# The version of the run directory and its files; spec.json has it as the key `format`. Raised when
# this kit can no longer read the files of an older one, or an older kit those of this one.
FORMAT = 7
JOB_LOG = "job.log"


class File:
    """A path in a folder, by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: "RunDir | AttemptDir", _: type) -> Path:
        return folder.path / self._name


@dataclass(frozen=True)
class RunDir:
    """The paths of one run, below `<runs_root>/<name>/<run_id>`."""

    path: Path

    spec = File("spec.json")
    spec_yaml = File("spec.yaml")
    overrides = File("overrides.json")  # the `KEY=VALUE` overrides of spec_yaml, a list
    changes = File("changes.jsonl")  # of the spec, that a user confirmed at a resume: one per line
    revision = File("revision.json")  # a change by a resume, until it is done: jobs.runs.revision
    code = File("code")
    kit = File("kit")  # the frozen kit: a link to `code` where that is a clone of its repository
    work = File("work")  # working directory of a user's script or module, over all attempts
    setup = File("setup.sh")
    provenance = File("provenance.json")
    submission = File("submission.json")  # the job, and the sbatch command that submitted it
    owner = File("owner.json")
    cancelled = File("cancelled")  # by cancel: no job starts the run before resume deletes it
    site = File("site.json")  # settings of the Slurm of the run
    successor = File("successor.json")  # the job that waits for this one to end, and continues
    attempts = File("attempts.jsonl")
    checkpoints = File("checkpoints")
    metrics = File("metrics.jsonl")
    progress = File("progress.json")
    saved = File("saved.json")  # step of a script's newest checkpoint, as its kit_stop.py reports
    tensorboard = File("tensorboard")
    result = File("result.json")
    job_log = File(JOB_LOG)
    submitit = File("submitit")

    @property
    def run_id(self) -> str:
        return self.path.name

    def names(self) -> dict[str, str]:
        """Return what a program calls the run."""
        return {"run_id": self.run_id, "run_dir": str(self.path)}

    def attempt(self, attempt: int) -> "AttemptDir":
        return AttemptDir(self.path / f"attempt-{attempt}")

    def rank_log(self, rank: int) -> Path:
        """Return the stable link to the newest attempt's log of a global rank."""
        return self.path / "logs" / f"rank-{rank:05d}.log"

    def timeline(self, writer: str) -> Path:
        return self.path / "timeline" / f"{writer}.jsonl"


@dataclass(frozen=True)
class AttemptDir:
    """The paths of one attempt K, below `RUN_DIR/attempt-K`."""

    path: Path

    plan = File("plan.json")  # nodes, endpoint, rendezvous id, by attempt.open for every agent
    rendezvous_key = File("rendezvous.key")  # signs what the torchruns share
    outcome = File("outcome.json")  # how the training ended, by rank 0 as its last act
    stop_requested = File("stop_requested")  # by each agent that gets a stop signal
    hang = File("hang.json")  # created empty by the rank that finds a hang first; its conclusion

    def agent(self, node_rank: int) -> Path:
        """Return the signals that a node's agent received, and how its torchrun ended."""
        return self.path / f"agent-{node_rank:05d}.json"

    def agent_error(self, node_rank: int) -> Path:
        """Return why an agent did not start torchrun: one line, by slurm/agent.sh or the agent."""
        return self.path / f"agent-{node_rank:05d}.error"

    def torchrun_log(self, node_rank: int) -> Path:
        """Return torchrun's own output on a node; its tracebacks repeat those of the ranks."""
        return self.path / f"torchrun-{node_rank:05d}.log"

    def rank_log(self, rank: int) -> Path:
        return self.path / f"rank-{rank:05d}.log"

    def rank_ended(self, rank: int) -> Path:
        """Return the empty file that torchrun creates when a rank of a script exits with 0."""
        return self.path / f"rank-{rank:05d}.ended"

    def rank_error(self, rank: int) -> Path:
        """Return why a rank failed; written by the rank as its last act."""
        return self.path / f"rank-{rank:05d}.error.json"
