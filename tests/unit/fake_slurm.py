"""Slurm's client commands as small executables that record how they are called.

They come before the real ones on PATH. A test that needs another answer installs its own script
for one client.
"""

from __future__ import annotations

from pathlib import Path

JOB_ID = "4711"  # of every job that the fake sbatch takes
SBATCH = f"""#!/bin/sh
printf '%s\\0' "$@" >"$FAKE_SLURM/sbatch.argv"
env >"$FAKE_SLURM/sbatch.env"
if [ -e "$FAKE_SLURM/refusal" ]; then
    cat "$FAKE_SLURM/refusal" >&2
    exit "$(cat "$FAKE_SLURM/refusal.exit")"
fi
case "$*" in *--test-only*) echo 'sbatch: Job 1 to start' >&2; exit ;; esac
case "$*" in *--version*) exit ;; esac
echo submitted >>"$FAKE_SLURM/submitted"
echo 'Submitted batch job {JOB_ID}'
"""
SCANCEL = """#!/bin/sh
echo "$@" >>"$FAKE_SLURM/cancelled"
for job in "$@"; do echo CANCELLED >"$FAKE_SLURM/state.$job"; done
"""
SCONTROL = """#!/bin/sh
[ "$2" = job ] || exit 0
state=$(cat "$FAKE_SLURM/state.$3" 2>/dev/null) || state=RUNNING
echo "   JobState=$state Reason=None Dependency=(null)"
"""
# %o: the commands of queued jobs; else the states of all jobs that have one.
SQUEUE = """#!/bin/sh
case "$*" in *%o*) cat "$FAKE_SLURM/queue" 2>/dev/null; exit 0 ;; esac
for file in "$FAKE_SLURM"/state.*; do
    [ -e "$file" ] || exit 1
    echo "${file##*.}|$(cat "$file")"
done
"""
CLIENTS = {
    "sbatch": SBATCH,
    "scancel": SCANCEL,
    "scontrol": SCONTROL,
    "squeue": SQUEUE,
    "sacct": "#!/bin/sh\nexit 1\n",
    "srun": "#!/bin/sh\n",
}


class FakeSlurm:
    """The clients in `bin`, their records and answers in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        for name, text in CLIENTS.items():
            self.install(name, text)

    def install(self, name: str, text: str) -> None:
        """Replace the script of a client."""
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def refuse(self, code: int, error: str = "sbatch: error: no such partition") -> None:
        """Let sbatch fail from now on with an exit code and a message."""
        (self.folder / "refusal").write_text(f"{error}\n")
        (self.folder / "refusal.exit").write_text(str(code))

    def set_state(self, job_id: str, state: str) -> None:
        """Let scontrol and squeue show a job in a state; without one it is RUNNING."""
        (self.folder / f"state.{job_id}").write_text(state)

    def enqueue(self, job_id: str, work_dir: Path, command: str) -> None:
        """Put a job into the queue that squeue shows with its command."""
        with open(self.folder / "queue", "a", encoding="utf-8") as queue:
            queue.write(f"{job_id}|{work_dir}|{command}\n")

    @property
    def argv(self) -> list[str]:
        """The arguments of the last sbatch."""
        return (self.folder / "sbatch.argv").read_text().split("\0")[:-1]

    @property
    def env(self) -> list[str]:
        """The environment of the last sbatch, NAME=value."""
        return (self.folder / "sbatch.env").read_text().splitlines()

    @property
    def submitted(self) -> int:
        """How many jobs sbatch has taken."""
        return len(self._lines("submitted"))

    @property
    def cancelled(self) -> list[str]:
        """The arguments of each scancel."""
        return self._lines("cancelled")

    def _lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []
