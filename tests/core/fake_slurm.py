"""Fakes of Slurm's client commands: small executables on PATH that record how they are called.

They come before the real ones on PATH. A fake stands here because a unit test needs answers that
no real Slurm gives on request: a refusal, a controller that is down, a preemption mode of another
site. It only prints what a test gives it and shows nothing about Slurm. The kit runs against a real
Slurm in tests/slurm.
"""

import os
import shlex
from pathlib import Path

JOB_ID = "4711"  # of every job that the fake sbatch takes
# Each client begins with it. The clients need no variable of the environment and no PATH.
RECORD = """#!/bin/sh
FAKE_SLURM={folder}
/usr/bin/env >"$FAKE_SLURM/{name}.env"
printf '%s\\0' "$@" >"$FAKE_SLURM/{name}.argv"
printf '%s\\n' "{name} $*" >>"$FAKE_SLURM/calls"
PATH=/usr/bin:/bin
"""
SBATCH = f"""
if [ -e "$FAKE_SLURM/refusal" ]; then
    cat "$FAKE_SLURM/refusal" >&2
    exit "$(cat "$FAKE_SLURM/refusal.exit")"
fi
case "$*" in *--test-only*) echo 'sbatch: Job 1 to start' >&2; exit ;; esac
echo submitted >>"$FAKE_SLURM/submitted"
[ -e "$FAKE_SLURM/state.{JOB_ID}" ] || echo RUNNING >"$FAKE_SLURM/state.{JOB_ID}"
echo 'Submitted batch job {JOB_ID}'
"""
SCANCEL = """
case $1 in --signal=*) exit ;; esac
for job in "$@"; do echo CANCELLED >"$FAKE_SLURM/state.$job"; done
"""
SCONTROL = """
[ "$2" = job ] || exit 0
state=$(cat "$FAKE_SLURM/state.$3" 2>/dev/null) || state=RUNNING
requeue=$(cat "$FAKE_SLURM/requeue.$3" 2>/dev/null) || requeue='Requeue=1 Restarts=0'
echo "   JobState=$state Reason=None Dependency=(null)"
echo "   $requeue BatchFlag=1"
"""
# A line as job_list.QUEUE_FORMAT has it for each job that has a state.
SQUEUE = r"""
cd "$FAKE_SLURM"
for id in $(ls | sed -n 's/^state\.//p'); do
    state=$(cat "state.$id")
    columns=$(cat "queue.$id" 2>/dev/null) || columns='N/A|UNLIMITED|1||None'
    printf '\036%s\n' "$id|$state|$columns|$(id -u)" | tr '|' '\037'
done
"""
CLIENTS = {
    "sbatch": SBATCH,
    "scancel": SCANCEL,
    "scontrol": SCONTROL,
    "squeue": SQUEUE,
    "sacct": "exit 1",
    "srun": "",
}


def squeue_line(job_id: str, state: str, columns: str = "N/A|UNLIMITED|1||None") -> str:
    """A line of squeue as job_list.QUEUE_FORMAT has it; columns: those behind the state."""
    row = [job_id, state, *columns.split("|", 4), str(os.getuid())]
    return "\x1e" + "\x1f".join(row) + "\n"


class FakeSlurm:
    """The clients in `bin`, their records and answers in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        self._texts: dict[str, dict[str, str]] = {}  # of each client, by its pattern, newest first
        for name, text in CLIENTS.items():
            self.install(name, text)

    def install(self, name: str, text: str, when: str = "*") -> None:
        """Let a client run a shell text where its arguments match a shell pattern.

        The newest pattern that matches decides; `*` replaces all earlier texts. $FAKE_SLURM is the
        folder of the records.
        """
        older = {} if when == "*" else self._texts[name]
        self._texts[name] = {when: text} | {key: older[key] for key in older if key != when}
        script = RECORD.format(folder=shlex.quote(str(self.folder)), name=name)
        for pattern, body in self._texts[name].items():
            quoted = pattern.replace(" ", "\\ ")
            script += f'case "$*" in {quoted})\n{body}\nexit ;;\nesac\n'
        (self.bin / name).write_text(script)
        (self.bin / name).chmod(0o755)

    def answer(
        self, name: str, output: str = "", error: str = "", status: int = 0, when: str = "*"
    ) -> None:
        """Let a client print two texts and exit with a status; `when` as in `install`."""
        printed = f"printf %s {shlex.quote(output)}\nprintf %s {shlex.quote(error)} >&2"
        self.install(name, f"{printed}\nexit {status}", when)

    def remove(self, *names: str) -> None:
        """Remove these clients; without names all of them."""
        for name in names or CLIENTS:
            (self.bin / name).unlink()

    def refuse(self, code: int, error: str = "sbatch: error: no such partition") -> None:
        """Let sbatch fail from now on with an exit code and a message."""
        (self.folder / "refusal").write_text(f"{error}\n")
        (self.folder / "refusal.exit").write_text(str(code))

    def set_queued(self, job_id: str, rest: str) -> None:
        """Let squeue show a job with these columns behind its state."""
        (self.folder / f"queue.{job_id}").write_text(rest)

    def set_state(self, job_id: str, state: str, requeue: str = "Requeue=1 Restarts=0") -> None:
        """Let scontrol and squeue show a job in a state; without one it is RUNNING."""
        (self.folder / f"state.{job_id}").write_text(state)
        (self.folder / f"requeue.{job_id}").write_text(requeue)

    @property
    def calls(self) -> list[str]:
        """All calls of all clients, in their order: the client's name and its arguments."""
        return self._lines("calls")

    @property
    def argv(self) -> list[str]:
        """The arguments of the last sbatch."""
        return (self.folder / "sbatch.argv").read_text().split("\0")[:-1]

    @property
    def env(self) -> list[str]:
        """The environment of the last sbatch, NAME=value."""
        return self._lines("sbatch.env")

    @property
    def submitted(self) -> int:
        """How many jobs sbatch has taken."""
        return len(self._lines("submitted"))

    @property
    def cancelled(self) -> list[str]:
        """The arguments of each scancel."""
        calls = [call.partition(" ") for call in self.calls]
        return [arguments for name, _, arguments in calls if name == "scancel"]

    def _lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().split("\n")[:-1] if path.exists() else []
