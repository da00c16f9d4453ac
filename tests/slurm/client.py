"""Uses the test cluster as a user does: sbatch, squeue, scontrol, and waits with a limit."""

import os
import pwd
import re
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from .conf import Site
from .host import PATH

_T = TypeVar("_T")
ENTER = Path(__file__).with_name("enter.sh").resolve()
# Of all commands and daemons; pytest itself may have another one.
UMASK = 0o022
# Lines that state() shows of each command and log.
_STATE_LINES = 12
# Lines that the daemons log on every start or request, without any error.
_NOISE = re.compile(
    r"mpi/pmix|credential (for client UID|from)|differs from hardware|Controller \w+ is not enabled"
)
# Final states of a job, unless a user requeues it.
_FINAL_STATES = {"CANCELLED", "COMPLETED", "FAILED", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}


class ClusterError(RuntimeError):
    """The cluster did not do what it should; the text has the state of the cluster."""


class Client:
    """A user of the cluster that `site` describes."""

    def __init__(self, site: Site) -> None:
        self.site = site

    @property
    def root(self) -> Path:
        return self.site.root

    @property
    def nodes(self) -> list[str]:
        return self.site.nodes

    @property
    def env(self) -> dict[str, str]:
        user = pwd.getpwuid(os.getuid())
        return {
            "SLURM_CONF": str(self.site.conf_dir / "slurm.conf"),
            "PATH": PATH,
            "HOME": user.pw_dir,
            "USER": user.pw_name,
            "LANG": "C.UTF-8",
        }

    def run(
        self,
        *argv: str | Path,
        check: bool = True,
        timeout_s: float = 60,
        cwd: Path | None = None,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command on the host with `env`, by default in the site's work_dir.

        With `check` a failure raises ClusterError; without, exit 124 stands for a timeout.
        """
        return self._run(self._as_admin(cwd, *map(str, argv)), check, timeout_s, cwd, stdin)

    def run_as_user(
        self, *argv: str | Path, check: bool = True, timeout_s: float = 60, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command as the user whose runs the tests start."""
        return self._run(self._as_student(cwd, *map(str, argv)), check, timeout_s, cwd)

    def tmp_path(self, folder: Path) -> Path:
        """Returns the folder that takes the place of `folder`, one of pytest's."""
        return folder

    def run_on(
        self, node: str, *argv: str | Path, check: bool = True, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command on a node (or on ctl), outside of any job."""
        return self._run(self._entering(node, *map(str, argv)), check, timeout_s)

    @contextmanager
    def running_on(self, node: str, *argv: str | Path) -> Iterator[subprocess.Popen[str]]:
        """A process on a node, outside of any job, that ends with the block; it has pipes."""
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = self._entering(node, *map(str, argv))
        with subprocess.Popen(command, env=self.env, text=True, **pipes) as process:
            try:
                yield process
            finally:
                process.kill()

    def sbatch(self, *argv: str | Path, stdin: str = "", cwd: Path | None = None) -> str:
        """Submits a job, not as the user of `run_as_user` if there is another one.

        Returns its id; without a file name the script is `stdin`.
        """
        output = self.run("sbatch", "--parsable", *argv, stdin=stdin, cwd=cwd).stdout
        return output.strip().partition(";")[0]

    def job(self, job_id: str, check: bool = True) -> dict[str, str]:
        """Returns the fields of `scontrol show job`; of an array only its first record."""
        done = self.run("scontrol", "-o", "show", "job", job_id, check=check)
        line = done.stdout.partition("\n")[0]
        # A value may hold spaces (Command=...): it ends at the next text that looks like a key.
        return dict(re.findall(r"([A-Z][\w:/]*)=(.*?)(?= [A-Z][\w:/]*=| *$)", line))

    def wait_job(
        self, job_id: str, states: str | Collection[str], timeout_s: float = 60
    ) -> dict[str, str]:
        """Waits until a job is in one of `states` and returns its record.

        Raises ClusterError after `timeout_s`, or at once when the job has ended in another state.
        """
        wanted = {states} if isinstance(states, str) else set(states)

        def reached() -> dict[str, str] | None:
            # The controller may be down for a while: that is one of the faults to test.
            job = self.job(job_id, check=False)
            state = job.get("JobState")
            if state in _FINAL_STATES - wanted:
                raise ClusterError(f"job {job_id} ended as {state}\n{self.state()}")
            return job if state in wanted else None

        return self.wait_for(reached, f"job {job_id} in {' or '.join(sorted(wanted))}", timeout_s)

    def wait_for(
        self, condition: Callable[[], _T | None], description: str, timeout_s: float = 60
    ) -> _T:
        """Returns the first true result of `condition`; raises ClusterError with the state."""
        deadline = time.monotonic() + timeout_s
        while not (result := condition()):
            if time.monotonic() > deadline:
                raise ClusterError(f"not within {timeout_s} s: {description}\n{self.state()}")
            time.sleep(0.1)
        return result

    def wait_idle(self, timeout_s: float = 90) -> None:
        self.wait_for(self.is_idle, "all nodes idle", timeout_s)

    def is_idle(self) -> bool:
        return list(self.node_states().values()) == ["idle"] * len(self.nodes)

    def node_states(self) -> dict[str, str]:
        """Returns sinfo's short state by node, {} while the controller does not answer."""
        output = self.run("sinfo", "-h", "-N", "-p", "urgent", "-o", "%N %t", check=False).stdout
        return dict(line.split() for line in output.splitlines())

    def job_ids(self) -> list[str]:
        """Returns the ids of all jobs in the queue; of an array one for each line of squeue."""
        return self.run("squeue", "-h", "-o", "%A").stdout.split()

    def state(self) -> str:
        """Returns nodes, queue, the newest jobs and the end of every log; never raises."""
        commands = ("sinfo -N -l", "squeue", "scontrol -o show job", "scontrol -o show node")
        parts = []
        for command in commands:
            done = self.run(*command.split(), check=False, timeout_s=10)
            parts.append(_titled(f"$ {command}", done.stdout + done.stderr))
        for log in sorted(self.site.log_dir.glob("*")):
            parts.append(_titled(f"--- {log.name}", log.read_text(errors="replace")))
        return "\n".join(parts)

    def _as_admin(self, cwd: Path | None, *argv: str) -> list[str]:
        return [*argv]

    def _as_student(self, cwd: Path | None, *argv: str) -> list[str]:
        return self._as_admin(cwd, *argv)

    def _entering(self, name: str, *argv: str) -> list[str]:
        return [
            str(ENTER),
            self.site.netns(name),
            self.site.host_name(name),
            str(self.site.conf_dir),
            *argv,
        ]

    def _run(
        self,
        argv: list[str],
        check: bool,
        timeout_s: float,
        cwd: Path | None = None,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        try:
            done = subprocess.run(
                argv,
                check=False,
                env=self.env,
                cwd=cwd or self.site.work_dir,
                input=stdin,
                umask=UMASK,
                capture_output=True,
                text=True,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            # The exit status of timeout(1).
            done = subprocess.CompletedProcess(argv, 124, "", f"no end within {timeout_s} s\n")
        if check and done.returncode != 0:
            raise ClusterError(f"{' '.join(argv)}: exit {done.returncode}\n{done.stderr}")
        return done


def _titled(title: str, text: str) -> str:
    lines = [line for line in text.splitlines() if not _NOISE.search(line)]
    return "\n".join([title, *lines[-_STATE_LINES:]])
