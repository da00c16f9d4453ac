"""The settings of a Slurm that each run needs are read from its output and recorded."""

import pytest

from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.contract.records.queued import SlurmSite
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.slurm import cluster

# From a real Slurm 22.05, shortened.
CONFIG = """\
** 3 nodes are down = wait **
Configuration data as of 2026-11-21T12:15:14
ClusterName             = c
KillWait                = 10 sec
PreemptType             = preempt/none
RequeueExit             = (null)
RequeueExitHold         = 7,9-11
SlurmdPort              = 7000-7010

Slurmctld(primary) at ctl is UP
"""


@pytest.mark.parametrize("text", ["", "slurm_load_ctl_conf error: Unable to contact", "x = y"])
def test_of_an_unknown_slurm_the_defaults_count_and_nothing_is_recorded(tmp_path, fake_slurm, text):
    fake_slurm.answer("scontrol", text)
    run = RunDir(tmp_path)
    assert cluster.record_settings(run) == SlurmSite()
    assert cluster.requeued_codes() == frozenset()
    assert not run.site.exists()


def test_the_settings_are_read_from_slurms_output_and_recorded(tmp_path, fake_slurm):
    fake_slurm.answer("scontrol", CONFIG)
    run = RunDir(tmp_path)
    assert cluster.record_settings(run) == SlurmSite(10, 7000, "c")
    assert read_json(run.site) == {"kill_wait_s": 10, "slurmd_port": 7000, "cluster": "c"}
    assert cluster.requeued_codes() == {7, 9, 10, 11}
