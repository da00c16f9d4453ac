"""Runs of another user, or of another cluster: what Slurm does not show may live."""

import os
import sys

import pytest

from slurm_job_kit.jobs.contract.records.queued import RecordedJob
from slurm_job_kit.jobs.slurm import job_list
from tests.core.run_files import kit

OTHER = 4001
CONFIG = "ClusterName             = one\nPreemptType             = preempt/qos\n"
GONE = "slurm_load_jobs error: Invalid job id specified\n"


@pytest.mark.parametrize(
    ("uid", "cluster", "is_alive"),
    [(OTHER, "one", None), (os.getuid(), "two", None), (os.getuid(), "one", False)],
)
def test_a_job_that_slurm_does_not_show_may_live_if_it_is_of_another_user_or_cluster(
    slurm, uid, cluster, is_alive
):
    slurm.answer("scontrol", error=GONE, status=1)
    slurm.answer("scontrol", CONFIG, when="show config")
    slurm.answer("sacct")
    assert job_list.life_of(RecordedJob("7", uid, cluster)).is_alive is is_alive


SHOWN = """\
JobId=7 JobName=x
   UserId=other({uid}) GroupId=lab(2000) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
"""


def test_an_id_that_slurm_gave_to_another_user_is_no_living_job(slurm):
    recorded = RecordedJob("7", os.getuid())
    for uid, is_alive in ((os.getuid(), True), (OTHER, False)):
        slurm.answer("scontrol", SHOWN.format(uid=uid), when="show job 7")
        assert job_list.life_of(recorded).is_alive is is_alive


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give a directory to another user")
def test_a_run_of_another_user_that_is_closed_is_named_with_its_user(submitted):
    submitted.path.chmod(0o700)
    os.chown(submitted.path, OTHER, OTHER)
    # Root without these is refused by the permissions of files, as any user is.
    user = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", sys.executable]
    done = kit("cancel", str(submitted.path), python=user)
    assert done.returncode == 2 and "is closed to you" in done.stderr, done.stderr
    assert f"user {OTHER}" in done.stderr
