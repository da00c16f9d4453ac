"""The core keeps its promise without the plugins: its tests pass in copies without them."""

import os
import subprocess
import sys

import pytest

from slurm_job_kit.jobs.plugins import PLUGINS
from tests.core_only import copy_without


@pytest.mark.slow
@pytest.mark.parametrize("plugin", ["all", *PLUGINS])
def test_the_tests_of_the_core_pass_without(plugin, tmp_path):
    copy_without(tmp_path, [*PLUGINS] if plugin == "all" else [plugin])
    argv = [sys.executable, "-m", "pytest", "-q", "-n2", "--dist=loadscope", "tests/core"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(argv, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stdout[-8000:]
