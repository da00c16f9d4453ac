"""The test cluster behaves like a real one of several hosts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .cluster import Cluster, ClusterError
from .user_cluster import cluster_at

_REPO = Path(__file__).parents[2]

# Task 1 listens, task 0 connects to it by its host name.
_TALK = """
import os, socket, sys, time
if os.environ["SLURM_PROCID"] == "1":
    with socket.create_server(("", 23456)) as server:
        server.settimeout(20)
        connection, peer = server.accept()
        print("heard", connection.recv(5).decode(), "from", peer[0])
else:
    for _ in range(100):
        try:
            with socket.create_connection((sys.argv[1], 23456), timeout=5) as connection:
                connection.sendall(b"hello")
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
"""

# A task and a descendant of it in another session, like a rank under torchrun; each records the
# signals that it received.
_FAMILY = """#!/bin/bash
listen() { trap "touch $1.usr1" USR1; touch "$1.ready"; while :; do sleep 0.1; done; }
export -f listen
setsid bash -c 'listen rank' &
listen task
"""


def _script(*lines: str) -> str:
    return "\n".join(["#!/bin/bash", *lines]) + "\n"


def _output(cluster: Cluster, job_id: str) -> str:
    cluster.wait_job(job_id, "COMPLETED")
    return (cluster.site.work_dir / f"slurm-{job_id}.out").read_text()


def test_batch_job_runs_on_four_nodes_with_own_name_and_address(cluster: Cluster) -> None:
    step = "srun bash -c 'echo $(hostname) $(ip -4 -o addr show eth0)'"
    job_id = cluster.sbatch("--nodes=4", stdin=_script(step))
    seen = {line.split()[0]: line.split()[4] for line in _output(cluster, job_id).splitlines()}
    site = cluster.site
    assert seen == {site.host_name(node): f"{site.address(node)}/24" for node in cluster.nodes}
    assert len(set(seen.values())) == 4


def test_slurm_works_in_a_job_without_any_environment(cluster: Cluster) -> None:
    step = f"env -i PATH={cluster.env['PATH']} scontrol show hostnames 'n[3-4]'"
    job_id = cluster.sbatch("--export=NONE", stdin=_script(step))
    assert _output(cluster, job_id).split() == ["n3", "n4"]


def test_first_node_takes_itself_for_loopback_and_others_do_not(cluster: Cluster) -> None:
    def address_of_n1(seen_by: str) -> str:
        name = cluster.site.host_name("n1")
        return cluster.run_on(seen_by, "getent", "ahostsv4", name).stdout.split()[0]

    assert address_of_n1("n1") == "127.0.1.1"
    assert address_of_n1("n2") == address_of_n1("ctl") == cluster.site.address("n1")


def test_tasks_reach_each_other_by_tcp(cluster: Cluster) -> None:
    (cluster.site.work_dir / "talk.py").write_text(_TALK)
    step = f"srun {sys.executable} talk.py {cluster.site.host_name('n2')}"
    job_id = cluster.sbatch("--nodes=2", stdin=_script(step))
    assert _output(cluster, job_id) == f"heard hello from {cluster.site.address('n1')}\n"


@pytest.mark.slow
def test_unplugged_node_cannot_be_reached_until_plugged(cluster: Cluster) -> None:
    def is_reached() -> bool:
        # slurmd listens on this port.
        probe = ("timeout", "1", "bash", "-c", f"</dev/tcp/{cluster.site.address('n2')}/6818")
        return cluster.run_on("n1", *probe, check=False).returncode == 0

    assert is_reached()
    cluster.unplug("n2")
    assert not is_reached()
    cluster.plug("n2")
    cluster.wait_for(is_reached, "n2 reached from n1", 20)


@pytest.mark.parametrize(
    ("proctrack", "receivers"),
    [("linuxproc", {"task", "rank"}), ("pgid", {"task"}), ("cgroup", {"task"})],
)
def test_proctrack_decides_who_receives_a_signal(
    cluster: Cluster, tmp_path: Path, proctrack: str, receivers: set[str]
) -> None:
    cluster.restart(proctrack=proctrack)
    script = tmp_path / "family.sh"
    script.write_text(_FAMILY)
    script.chmod(0o755)
    job_id = cluster.sbatch(stdin=_script(f"srun {script}"), cwd=tmp_path)
    cluster.wait_for(lambda: len(list(tmp_path.glob("*.ready"))) == 2, "both ready", 20)
    cluster.run("scancel", "--signal=USR1", job_id)
    cluster.wait_for(lambda: list(tmp_path.glob("task.usr1")), "the task has the signal", 20)
    if "rank" in receivers:
        cluster.wait_for(lambda: list(tmp_path.glob("rank.usr1")), "the rank has it too", 20)
    assert {path.stem for path in tmp_path.glob("*.usr1")} == receivers


@pytest.mark.slow
def test_settings_come_on_top_or_instead_and_reset_takes_them_back(cluster: Cluster) -> None:
    cluster.restart(extra_conf="KillWait=7\nPartitionName=extra Nodes=n1")
    assert "KillWait                = 7 sec" in cluster.run("scontrol", "show", "config").stdout
    cluster.run("srun", "-pextra", "true")
    with pytest.raises(ClusterError, match="unrecognized key"):
        cluster.restart(extra_conf="Nonsense=1")
    cluster.reset()
    assert "KillWait                = 10 sec" in cluster.run("scontrol", "show", "config").stdout


@pytest.mark.slow
def test_stop_leaves_nothing_behind_even_after_a_kill(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("c")  # short, for the unix sockets below it
    code = f"""if True:
        import os, pathlib, signal
        from tests.slurm.user_cluster import cluster_at
        other = cluster_at(pathlib.Path({str(root)!r}), nodes=1)
        other.start()
        job_id = other.sbatch(stdin="#!/bin/sh\\nsetsid sleep 300 & srun sleep 300")
        other.wait_for(lambda: sum("sleep" in p for p in other.job_processes().values()) >= 2, "")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60, cwd=_REPO)
    assert done.returncode == -signal.SIGKILL
    other = cluster_at(root, nodes=1)
    pids = list(other.job_processes())
    assert pids
    other.stop()
    other.stop()
    assert not [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]
    left = [*os.listdir("/run/netns"), *os.listdir("/sys/class/net")]
    assert not [name for name in left if name.startswith(other.site.tag)]
    assert cluster.is_idle()
