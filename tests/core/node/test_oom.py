"""The kernel's count of processes that it killed for memory, wherever a cgroup is mounted."""

import os

import pytest

from slurm_job_kit.jobs.node.oom import limit_bytes, oom_kills

V1 = "33 30 0:29 {root} {mount} rw,relatime shared:9 - cgroup cgroup rw,memory\n"
OTHER = "32 30 0:28 / {mount}/not-this rw - cgroup cgroup rw,freezer\n"
OTHER += "31 30 0:27 / {mount}/tmp rw - tmpfs  rw\n"  # mounted without a source
V2 = "35 24 0:31 {root} {mount} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.fixture
def world(tmp_path):
    """Make a process's /proc files and a cgroup below a mount; returns the /proc folder."""

    def make(mounts, groups, group, counter, text, members=None):
        proc, folder = tmp_path / "proc", tmp_path / "mount" / group
        proc.mkdir()
        folder.mkdir(parents=True)
        (proc / "mountinfo").write_text(mounts.replace("{mount}", str(tmp_path / "mount")))
        (proc / "cgroup").write_text(groups)
        (folder / counter).write_text(text)
        (folder / "cgroup.procs").write_text(f"1\n{os.getpid() if members is None else members}\n")
        return proc

    return make


CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
EVENTS = "low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 0\n"
JOB = "slurm/uid_1/job_2/step_0/task_0"


@pytest.mark.parametrize("root", ["/", "/slurm"])
def test_a_kill_is_counted_under_version_1(world, root):
    groups = f"7:blkio:/\n4:memory:/{JOB}\n1:name=systemd:/\n0::/\n"
    inside = JOB if root == "/" else JOB.removeprefix("slurm/")
    mounts = OTHER + V1.replace("{root}", root)
    assert oom_kills(world(mounts, groups, inside, "memory.oom_control", CONTROL)) == 3


@pytest.mark.parametrize(("members", "kills"), [(None, 3), ("999999", None)])
def test_a_kill_is_counted_under_version_2_but_not_in_a_cgroup_of_others(world, members, kills):
    proc = world(V2.replace("{root}", "/"), f"0::/{JOB}\n", JOB, "memory.events", EVENTS, members)
    assert oom_kills(proc) == kills


def test_where_nobody_counts_there_is_no_number(world, tmp_path):
    assert oom_kills(world("", "0::/\n", "x", "memory.events", "")) is None
    assert oom_kills(tmp_path / "nowhere") is None


def test_the_limit_of_a_job_is_the_lowest_of_its_cgroups(world, tmp_path):
    proc = world(V2.replace("{root}", "/"), f"0::/{JOB}\n", JOB, "memory.events", EVENTS)
    assert limit_bytes(proc) is None
    (tmp_path / "mount" / JOB / "memory.max").write_text("max\n")
    (tmp_path / "mount/slurm/uid_1/job_2/memory.max").write_text("629145600\n")
    (tmp_path / "mount/slurm/memory.max").write_text("734003200\n")
    assert limit_bytes(proc) == 600 << 20
