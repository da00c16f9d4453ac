"""What doctor says of a host and of a Slurm: each planted fault is named."""

import os
import resource
import time

import pytest
import yaml

from slurm_job_kit.jobs.__main__ import main

CONFIG = """Configuration data as of {time}
KillWait                = {kill_wait} sec
JobRequeue              = {requeue}
PreemptType             = preempt/partition_prio
SLURM_VERSION           = 23.11.4
"""
PARTITIONS = """PartitionName=gpu
   AllowAccounts=vip Default=NO
   GraceTime=0 MaxTime=1-00:00:00
   TotalNodes=2 PreemptMode=CANCEL
PartitionName=cpu
   AllowAccounts=ALL Default=YES
   GraceTime=30 MaxTime=UNLIMITED
   TotalNodes=4 PreemptMode={mode}
"""


@pytest.fixture
def fast_python(here, monkeypatch):
    """A site file with an interpreter that says at once what torch's import takes seconds for."""
    python = here / "python"
    python.write_text("#!/bin/sh\necho 2.13.0 None 0\n")
    python.chmod(0o755)
    (here / "site.yaml").write_text(f"launch: {{python: {python}}}\n")
    monkeypatch.setenv("KIT_SITE", str(here / "site.yaml"))


@pytest.fixture
def doctor(slurm, fast_python, capsys):
    """`doctor(words, ...)`: its exit code and what it prints, on a site of these settings."""

    def call(*words, ahead_s=0, kill_wait=30, requeue=1, mode="REQUEUE", most=""):
        now = int(time.time() - ahead_s)
        config = CONFIG.format(time=now, kill_wait=kill_wait, requeue=requeue)
        slurm.answer("scontrol", "Slurmctld(primary) at head is UP\n", when="ping*")
        slurm.answer("scontrol", config, when="*config")
        slurm.answer("scontrol", PARTITIONS.format(mode=mode), when="*partition*")
        slurm.answer("sbatch", error="error: Invalid account\n", status=1, when="*=gpu*")
        slurm.install("sacctmgr", "")
        slurm.answer("sacctmgr", "normal,low\n", when="*format=QOS")
        every = f"normal|00:00:00||{most}\nother|00:00:00|1|1\n"
        slurm.answer("sacctmgr", every, when="*show qos*")
        slurm.answer("sacctmgr", "lab\n", when="*DefaultAccount")
        code = main(["doctor", *words])
        return code, capsys.readouterr().out

    return call


def test_a_site_without_a_fault_is_fine(doctor):
    code, lines = doctor()
    assert code == 0
    assert "\nOK    slurm      23.11.4" in lines
    assert "OK    partition  cpu: 4 nodes, time limit UNLIMITED, grace 30 s\n" in lines
    assert "WARN  partition  gpu: 2 nodes, time limit 1-00:00:00; error: Invalid account\n" in lines


@pytest.mark.parametrize(
    ("site", "line"),
    [
        ({"ahead_s": 900}, "WARN  clock      this host's is +90"),
        ({"requeue": 0}, "WARN  requeue    JobRequeue=0"),
        ({"kill_wait": 5}, "WARN  KillWait   5 s"),
        ({"mode": "SUSPEND"}, "WARN  preemption partition cpu: SUSPEND"),
        ({"most": 2}, "WARN  QOS        normal: 2 jobs of yours"),
    ],
)
def test_a_fault_of_the_site_is_named(doctor, site, line):
    code, lines = doctor(**site)
    assert (code, line in lines) == (0, True)


def test_a_fault_of_the_host_is_named(doctor, monkeypatch):
    """A file system without hard links cannot be mounted everywhere: os.link stands for it."""

    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(os, "link", refused)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        code, lines = doctor()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert code == 1
    assert "it has no hard links" in lines
    assert "WARN  ulimit     -n 256" in lines


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), "slurmctld does not answer"),
        (("sbatch",), "no sbatch on PATH; SLURM_CONF is set; module load slurm"),
    ],
)
def test_a_slurm_that_is_silent_or_not_loaded_is_a_failure(
    fast_python, fake_slurm, capsys, monkeypatch, names, words
):
    if names:
        fake_slurm.remove(*names)
        monkeypatch.setenv("PATH", str(fake_slurm.bin))
        monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    assert main(["doctor"]) == 1
    assert words in capsys.readouterr().out


def test_the_site_file_is_written_once_and_counts_for_the_probe(doctor, slurm, capsys, monkeypatch):
    path = slurm.folder / "new/site.yaml"
    monkeypatch.setenv("KIT_SITE", str(path))
    assert doctor("--write-site", "--probe")[0] == 0
    assert yaml.safe_load(path.read_text())["slurm"] == {"account": "lab", "partition": "cpu"}
    assert {"--account=lab", "--partition=cpu", "--nodes=2", "--requeue"} <= {*slurm.argv}
    assert main(["doctor", "--write-site"]) == 2
    assert f"{path} exists" in capsys.readouterr().err
