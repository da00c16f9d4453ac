"""What /proc shows of a process, for one that lives and one that has ended."""

import os
import subprocess

from slurm_job_kit.jobs import procfs


def test_a_process_that_is_gone_has_nothing():
    with subprocess.Popen(["true"]) as child:
        child.wait()
    assert child.pid not in procfs.children(os.getpid())
    assert procfs.parent_of(child.pid) is None
    assert procfs.start_of(child.pid) == ""


def test_the_name_of_a_process_may_hold_brackets(tmp_path):
    program = tmp_path / "a) b (c"
    program.write_text("#!/bin/sh\nread line\n")
    program.chmod(0o755)
    with subprocess.Popen([program], stdin=subprocess.PIPE) as child:
        assert procfs.parent_of(child.pid) == os.getpid()
