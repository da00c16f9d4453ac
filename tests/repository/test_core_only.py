"""The core keeps its promise without the rooms: its tests pass in copies without them."""

import os
import subprocess
import sys

import pytest

from slurm_job_kit.jobs.rooms import ROOMS
from tests.core_only import copy_without


@pytest.mark.slow
@pytest.mark.parametrize("room", ["all", *ROOMS])
def test_the_tests_of_the_core_pass_without(room, tmp_path):
    copy_without(tmp_path, [*ROOMS] if room == "all" else [room])
    argv = [sys.executable, "-m", "pytest", "-q", "-n2", "--dist=loadscope", "tests/core"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(argv, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stdout[-8000:]
