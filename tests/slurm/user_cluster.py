"""The test cluster in its second shape, see `user_site`; `cluster_at` makes the chosen shape."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

from . import host, network, user_site
from .client import ENTER, UMASK, ClusterError
from .cluster import Cluster
from .conf import CONTROLLER
from .user_site import GROUP, GROUP_ID, LOGIN, OTHER, STUDENT, USERS, User, UserSite

_HERE = Path(__file__).resolve().parent
_FURNISH = _HERE / "furnish.sh"
_FILE_CLIENT = _HERE / "file_client.c"
_DATABASE = ("mariadbd", "slurmdbd")
# Short, for the unix sockets below it; every node sees /tmp.
_TMP = Path("/tmp")


def cluster_at(root: Path, nodes: int = 4) -> Cluster:
    """Returns a cluster of the shape that KIT_TEST_SITE chooses."""
    return (UserCluster if host.IS_SITE else Cluster)(root, nodes=nodes)


def root_of_this_process(purpose: str) -> Path:
    """Returns where this process may have a cluster; ends those of processes that were killed."""
    with _alone():  # several processes start at once, and would remove the same cluster
        for root in _TMP.glob(f"slurm-{purpose}-*"):
            pid = root.name.rpartition("-")[2]
            if root.lstat().st_uid == os.geteuid() and not Path("/proc", pid).exists():
                cluster_at(root).stop()
                shutil.rmtree(root)
    return _TMP / f"slurm-{purpose}-{os.getpid()}"


@contextmanager
def _alone() -> Iterator[None]:
    """A block that one process of this machine is in at a time."""
    folder = os.open(_TMP, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


class UserCluster(Cluster):
    """A cluster with ordinary users.

    The student's commands run on the login machine, the administrator's on the controller. Each
    machine has a first process that keeps its namespaces.
    On the nodes and the login machine this is the file client, so a power failure takes its caches.
    """

    shape = UserSite
    folders = (*Cluster.folders, "database")

    @property
    def _user_site(self) -> UserSite:
        return cast(UserSite, self.site)

    def shell(self, user: User) -> list[str]:
        names = ("PATH", "SLURM_CONF")
        settings = [f"{name}={self.env[name]}" for name in names]
        return self._as(user, Path(self._user_site.home(user)), *settings, "bash")

    def sbatch(self, *argv: str | Path, stdin: str = "", cwd: Path | None = None) -> str:
        command = self._as(OTHER, cwd, "sbatch", "--parsable", *map(str, argv))
        return self._run(command, True, 60, stdin=stdin).stdout.strip().partition(";")[0]

    def job(self, job_id: str, check: bool = True) -> dict[str, str]:
        """Returns the fields of `scontrol show job`; once Slurm forgot them, those of sacct."""
        if found := super().job(job_id, check=False):
            return found
        fields = "State,Restarts" if host.installed_version() >= (23, 2) else "State"
        asked = ("sacct", "-X", "-D", "-n", "-P", f"--jobs={job_id}", f"--format={fields}")
        starts = self.run(*asked, check=check).stdout.split("\n")[:-1]
        if not starts:
            return {}
        # A start that was requeued has a line of its own.
        return {"JobState": starts[-1].split("|")[0].split()[0], "Restarts": str(len(starts) - 1)}

    def tmp_path(self, folder: Path) -> Path:
        """Returns a folder among the shared files that all users may write to."""
        shared = self.site.work_dir / folder.name
        shared.mkdir()
        shared.chmod(0o777)
        return shared

    def unplug(self, node: str) -> None:
        super().unplug(node)
        self._signal_client(node, signal.SIGSTOP)

    def plug(self, node: str) -> None:
        super().plug(node)
        self._signal_client(node, signal.SIGCONT)

    def _signal_client(self, node: str, number: signal.Signals) -> None:
        """Without a network a file client of a real site hangs, too."""
        if pid := self._first_process(node):
            os.kill(pid, number)

    def _as_admin(self, cwd: Path | None, *argv: str) -> list[str]:
        return self._entering(CONTROLLER, *_at(cwd or self.site.work_dir), *argv)

    def _as_student(self, cwd: Path | None, *argv: str) -> list[str]:
        return self._as(STUDENT, cwd, *argv)

    def _as(self, user: User, cwd: Path | None, *argv: str) -> list[str]:
        environment = (f"HOME={self._user_site.home(user)}", f"USER={user.name}")
        ids = (f"--reuid={user.name}", f"--regid={GROUP}", "--clear-groups")
        at = _at(cwd or self.site.work_dir)
        return self._entering(LOGIN, "setpriv", *ids, *at, *environment, *argv)

    def _entering(self, name: str, *argv: str) -> list[str]:
        if (pid := self._first_process(name)) is None:
            return super()._entering(name, *argv)
        return [str(ENTER), "--join", str(pid), *argv]

    def _first_process(self, name: str) -> int | None:
        with suppress(FileNotFoundError, ValueError):
            pid = int((self.root / f"run/{name}.first").read_text())
            if pid in network.processes(self.site.tag, name):
                return pid
        return None

    def _daemons_of(self, node: str) -> set[int | None]:
        return super()._daemons_of(node) | {self._first_process(node)}

    def _make_folders(self) -> None:
        super()._make_folders()
        self.root.chmod(0o755)  # it may be a folder that was made for one user
        work = self.site.work_dir
        work.chmod(0o1777)
        for user in USERS:
            home = Path(self._user_site.home(user))
            home.mkdir(parents=True)
            (home / ".gitconfig").write_text("[safe]\n\tdirectory = *\n")
            os.chown(home, user.id, GROUP_ID)
        flags = _output("pkg-config", "--cflags", "--libs", "fuse3").split()
        _output("gcc", "-O1", "-o", f"{self.root}/run/file_client", str(_FILE_CLIENT), *flags)

    def _write_conf(self) -> None:
        super()._write_conf()
        etc, site = self.site.conf_dir, self._user_site
        (etc / "passwd").write_text(user_site.passwd(site, Path("/etc/passwd").read_text()))
        (etc / "group").write_text(user_site.group(Path("/etc/group").read_text()))
        (etc / "job_submit.lua").write_text(user_site.job_submit_lua())
        dbd = etc / "slurmdbd.conf"
        dbd.touch(mode=0o600)
        dbd.write_text(user_site.slurmdbd_conf(site))

    def _boot_machines(self, names: Collection[str]) -> None:
        for name in names:
            if self._first_process(name) is None:
                self._boot_machine(name)

        def is_ready(name: str) -> bool:
            pid = self._first_process(name)
            mounts = Path(f"/proc/{pid}/mounts").read_text() if pid else ""
            return bool(pid) and (name == CONTROLLER or f"{self.site.work_dir} fuse" in mounts)

        self.wait_for(lambda: all(map(is_ready, names)), f"machines {', '.join(names)}", 30)

    def _boot_machine(self, name: str) -> None:
        argv = super()._entering(name, str(_FURNISH), name, str(self.root), *_kept())
        self._in_background(f"machine.{name}", argv)

    def _in_background(self, name: str, argv: list[str]) -> None:
        """Starts a daemon that does not go into the background itself."""
        with (self.site.log_dir / f"{name}.log").open("a") as log:
            subprocess.run(
                ["setsid", "--fork", *argv],
                check=True,
                env=self.env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                umask=UMASK,
            )

    def _kill_all(self) -> None:
        """Ends all but the database, which takes seconds to start."""
        for name in self.site.clients:
            network.kill_all(self.site.tag, name)
        kept = [self._first_process(CONTROLLER) or 0]
        for pid in network.processes(self.site.tag, CONTROLLER):
            with suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() in _DATABASE:
                    kept.append(pid)
        network.kill_all(self.site.tag, CONTROLLER, kept)

    def _start_accounting(self) -> None:
        dbd = self.site.pid_file("dbd")
        if not dbd.exists():
            self._start_database()
            self._launch({CONTROLLER: ["slurmdbd"]})
            self.wait_for(self._has_accounting, "slurmdbd", 60)
            self._sacctmgr(user_site.accounts(self._user_site))
        self._sacctmgr(user_site.preemption(self._user_site))

    def _start_database(self) -> None:
        folder = self.root / "database"
        common = (
            "--no-defaults",
            "--user=root",
            f"--datadir={folder}",
            "--innodb-log-file-size=8M",
        )
        self.run("mariadb-install-db", *common, "--skip-test-db")
        network_only = ("--bind-address=127.0.0.1", "--skip-grant-tables", "--skip-networking=0")
        small = ("--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900")
        files = (f"--socket={folder}/socket", f"--pid-file={folder}/pid")
        argv = ["mariadbd", *common, *network_only, *small, *files]
        self._in_background("mariadbd", self._entering(CONTROLLER, *argv))
        self.wait_for((folder / "socket").exists, "mariadbd", 60)

    def _has_accounting(self) -> bool:
        return self.run("sacctmgr", "-n", "list", "cluster", check=False).returncode == 0

    def _sacctmgr(self, commands: str) -> None:
        self.run("sacctmgr", "-i", "-Q", stdin=commands)


def _at(folder: Path) -> tuple[str, str]:
    return "env", f"--chdir={folder}"


def _kept() -> list[str]:
    """The folders with the interpreter, its packages, the checkout and Slurm."""
    kept = {Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), _HERE.parents[1]}
    return [str(path) for path in sorted(kept | ({host.PREFIX} if host.PREFIX else set()))]


def _output(*argv: str) -> str:
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(argv)}: {done.stderr}")
    return done.stdout
