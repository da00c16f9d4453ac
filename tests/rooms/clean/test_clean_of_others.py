"""What clean leaves alone: a run that another host has just changed."""

import os

from slurm_job_kit.jobs.rooms.clean import clean
from tests.core import run_files
from tests.core.commands.test_two_hosts import run as run
from tests.core.two_hosts import look


def test_the_age_of_a_run_is_that_of_its_files_now(hosts, run):
    run_files.recorded(run)
    there = hosts.run_there(run)
    for path in (run.spec, run.submission, run.attempts, run.path):
        os.utime(path, (0, 0))
    look(hosts.there)
    assert clean.age_s(there) > 60
    run_files.recorded(run, decision="hold")
    assert clean.age_s(there) < 60
