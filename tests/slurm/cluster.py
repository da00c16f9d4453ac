"""A real Slurm cluster on this one machine, for tests and for trying things out.

Every node has its own address, host name, /etc/hosts and cgroup tree; files are shared. Nothing
outside of the cluster's folder is written, and no other Slurm is ever called.
"""

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from . import conf, host, network
from .client import ClusterError
from .conf import CONTROLLER, USUAL_PREEMPTION, Preemption, Site
from .host import why_not
from .machines import Machines

__all__ = ["Cluster", "ClusterError", "why_not"]

# Unix sockets below the root (munge's, one per step) may have paths of 108 bytes at most.
_MAX_ROOT_LENGTH = 70


class Cluster(Machines):
    """A Slurm cluster whose files all lie below `root`.

    The proctrack plugin is cgroup, linuxproc or pgid and decides who receives a signal; at first
    cgroup where this machine can do it. `extra_conf` are lines of slurm.conf that come on top of
    the usual ones or replace them. The nodes are n1, n2, ...; n1 resolves its name to 127.0.1.1.
    """

    shape: type[Site] = Site
    folders: tuple[str, ...] = ("etc", "log", "munge", "run", "spool", "state", "work")

    def __init__(self, root: Path, nodes: int = 4, cpus: int = 4, extra_conf: str = "") -> None:
        root = root.resolve()
        if len(str(root)) > _MAX_ROOT_LENGTH:
            raise ClusterError(f"{root}: too long for the unix sockets below it")
        proctrack = "cgroup" if host.cgroup_version() else "linuxproc"
        site = self.shape(root, nodes, cpus, proctrack, extra_conf, prefix=host.PREFIX)
        super().__init__(site)
        self._settings = (proctrack, extra_conf)

    def start(self) -> None:
        """Starts the cluster; removes what an earlier one at this root left behind first.

        Returns when all nodes are idle; raises ClusterError when they are not within 30 s.
        """
        if reason := why_not():
            raise ClusterError(reason)
        self.stop()
        self.site = replace(self.site, subnet=network.free_subnet(self.site.tag))
        self._make_folders()
        try:
            network.build(self.site)
            self._boot()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends all processes of the cluster and removes its namespaces and links.

        Works after a half-failed start and twice in a row; files stay until the next start.
        """
        network.remove(self.site.tag)

    def restart(
        self,
        proctrack: str | None = None,
        extra_conf: str | None = None,
        preemption: Preemption = USUAL_PREEMPTION,
    ) -> None:
        """Kills everything, jobs too, and begins with an empty queue; None keeps a setting."""
        self._kill_all()
        for node in self.nodes:
            self.plug(node)
        self.site = replace(
            self.site,
            proctrack=proctrack or self.site.proctrack,
            extra_conf=self.site.extra_conf if extra_conf is None else extra_conf,
            preemption=preemption,
        )
        self._boot()

    def name_by_ipv6(self, *nodes: str) -> None:
        """Makes the names of these nodes, and of no others, resolve to IPv6 addresses only."""
        self.site = replace(self.site, ipv6_nodes=nodes)
        self._write_hosts()

    def reset(self) -> None:
        self.name_by_ipv6()
        for node in self.nodes:
            self.plug(node)
        is_unchanged = (self.site.proctrack, self.site.extra_conf) == self._settings
        is_unchanged &= self.site.preemption == USUAL_PREEMPTION
        if not (is_unchanged and self._is_idle()):
            self.restart(*self._settings)

    def _is_idle(self) -> bool:
        is_alive = all(self.daemon_pid(name) for name in [CONTROLLER, *self.nodes])
        return is_alive and self.is_idle() and not self.job_ids() and not self.job_processes()

    def _make_folders(self) -> None:
        root = self.root
        for name in self.folders:
            shutil.rmtree(root / name, ignore_errors=True)
            # Jobs may run as other users, so they may read the folders; the key below is private.
            (root / name).mkdir(parents=True, mode=0o755)
        (root / ".gitignore").write_text("*\n")
        key = root / "munge/key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(64))

    def _boot(self) -> None:
        # Job ids are not used twice, as on a real cluster: old run directories may still exist.
        next_job_id = max(int(time.time()) % 10_000_000, self.site.first_job_id + 1000)
        self.site = replace(self.site, first_job_id=next_job_id)
        self._write_conf()
        self._boot_machines(self.site.machines)
        self._launch({CONTROLLER: conf.munged_argv(self.site)})
        self._start_accounting()
        # -c drops the state of an earlier run: a node is idle once its slurmd has registered.
        daemons = {node: self._daemon("slurmd") for node in self.nodes}
        self._launch({CONTROLLER: [*self._daemon("slurmctld"), "-c"], **daemons})
        self.wait_idle()

    def _kill_all(self) -> None:
        network.kill_all(self.site.tag)

    def _write_conf(self) -> None:
        etc = self.site.conf_dir
        self._write_hosts()
        (etc / "init-cgroup").write_text("0::/\n")
        (etc / "cgroup.conf").write_text(conf.cgroup_conf(host.cgroup_version() or 1))
        (etc / "slurm.conf").write_text(conf.slurm_conf(self.site))

    def _start_accounting(self) -> None:
        """Starts what slurmctld keeps its accounts in; here it has none."""

    def _write_hosts(self) -> None:
        """Writes /etc/hosts of each machine in place: running processes see the same file."""
        for name in self.site.machines:
            path = self.site.conf_dir / f"hosts.{self.site.host_name(name)}"
            path.write_text(conf.hosts(self.site, name))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
