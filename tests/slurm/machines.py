"""The machines of a running cluster: their daemons, their power and their cables."""

import os
import signal
import subprocess
from collections.abc import Collection
from pathlib import Path

from . import network
from .client import UMASK, Client, ClusterError
from .conf import CONTROLLER


class Machines(Client):
    def start_controller(self) -> None:
        """Starts slurmctld again; it continues from the state that it has written."""
        self._launch({CONTROLLER: self._daemon("slurmctld")})

    def saved_at(self) -> float:
        """Returns when slurmctld last wrote its jobs, in seconds since the epoch; 0 before."""
        try:
            return (self.site.root / "state/job_state").stat().st_mtime
        except FileNotFoundError:  # slurmctld renames two files to replace it
            return 0.0

    def kill_controller(self) -> None:
        """Kills slurmctld, as a crash does: state that it has not written yet is lost."""
        if pid := self.daemon_pid(CONTROLLER):
            os.kill(pid, signal.SIGKILL)
        self.wait_for(lambda: not self.daemon_pid(CONTROLLER), "slurmctld ended", 30)

    def power_off(self, node: str) -> None:
        """Kills every process of a node at once, slurmd and the jobs' alike.

        The cable is pulled first: the kernel goes on here, and would send the peers a reset.
        """
        self.unplug(node)
        network.kill_all(self.site.tag, node)

    def power_on(self, node: str) -> None:
        self._boot_machines([node])
        self.plug(node)
        self._launch({node: self._daemon("slurmd")})

    def unplug(self, node: str) -> None:
        """Cuts a node off the network; its processes go on."""
        network.set_cable(self.site, node, plugged=False)

    def plug(self, node: str) -> None:
        """Connects an unplugged node again; slurmctld may take 80 s to notice, see register."""
        network.set_cable(self.site, node, plugged=True)

    def register(self, node: str) -> None:
        """Makes slurmd report to slurmctld, which then uses the node again and ends stale jobs."""
        if pid := self.daemon_pid(node):
            os.kill(pid, signal.SIGHUP)

    def daemon_pid(self, name: str) -> int | None:
        """Returns the process id of a node's slurmd (or ctl's slurmctld), None if it is dead."""
        try:
            pid = int(self.site.pid_file(name).read_text())
        except (FileNotFoundError, ValueError):
            return None
        return pid if pid in network.processes(self.site.tag, name) else None

    def job_processes(self) -> dict[int, str]:
        """Returns the command lines of all processes on the nodes but daemons, by process id."""
        commands = {}
        for node in self.nodes:
            for pid in network.processes(self.site.tag, node):
                if pid not in self._daemons_of(node):
                    commands[pid] = f"{node}: {_command_line(pid)}"
        return commands

    def _daemons_of(self, node: str) -> set[int | None]:
        """The ids of the processes that a node has without any job."""
        return {self.daemon_pid(node)}

    def _boot_machines(self, names: Collection[str]) -> None:
        """Makes machines ready for their daemons; here the network is all that they need."""

    def _daemon(self, program: str) -> list[str]:
        argv = [program, "-f", self.env["SLURM_CONF"]]
        if program == "slurmd" and self.site.prefix:
            # By default it takes the one in its build prefix, which may be of another version.
            argv += ["-d", f"{self.site.prefix}/sbin/slurmstepd"]
        if program == "slurmctld":
            # One that was killed may have left no file of its accounts: 26.05 would not start then.
            argv.append("-i")
        return argv

    def _launch(self, daemons: dict[str, list[str]]) -> None:
        """Starts one daemon per machine, side by side; each goes into the background itself."""
        starting = {}
        for name, argv in daemons.items():
            with (self.site.log_dir / f"start.{name}.log").open("a") as log:
                starting[name] = subprocess.Popen(
                    self._entering(name, *argv),
                    env=self.env,
                    cwd=self.root,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    umask=UMASK,
                    start_new_session=True,
                )
        failed = [name for name, process in starting.items() if not _ends_well(process)]
        if failed:
            programs = ", ".join(f"{daemons[name][0]} on {name}" for name in failed)
            raise ClusterError(f"did not start: {programs}\n{self.state()}")


def _ends_well(process: subprocess.Popen[bytes], timeout_s: float = 90) -> bool:
    try:
        return process.wait(timeout_s) == 0
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return "(ended)"
