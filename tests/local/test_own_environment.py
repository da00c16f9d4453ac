"""Local runs whose agents have another environment than the host: docs/environments.md.

A test whose program is missing is skipped: apt-get install charliecloud environment-modules.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from slurm_job_kit.jobs.rundir import RunDir, read_json, read_jsonl
from tests.checkout import copy_checkout

pytestmark = pytest.mark.room("scripts")

SCRIPT = """import os, sys
import torch
print("interpreter", sys.executable, os.environ["PREPARED"], torch.ones(2).sum().item())
"""


ENVIRONMENT = os.path.realpath(sys.prefix)
MODULES = Path("/usr/share/modules/init/bash")
needs_venv = pytest.mark.skipif(
    sys.prefix == sys.base_prefix,
    reason="the interpreter is in no virtual environment, which another path could show",
)


@pytest.fixture
def run_script(tmp_path, kit):
    """`run_script(spec)`: the run directory of SCRIPT on two nodes, which completed at once."""

    def run(spec):
        kit.repository = tmp_path / "copy"
        copy_checkout(kit.repository)
        (kit.repository / "mine.py").write_text(SCRIPT)
        launch = {"script": "mine.py", **spec.pop("launch")}
        config = tmp_path / "tiny.yaml"
        # JSON is YAML.
        config.write_text(
            json.dumps({"name": "tiny", "slurm": {"nodes": 2}} | spec | {"launch": launch})
        )
        status, _, stderr = kit.run("submit", config, "--cluster", "local")
        run_dir = RunDir((kit.root / "tiny/latest").resolve())
        assert status == 0, stderr + run_dir.job_log.read_text()
        assert len(read_jsonl(run_dir.attempts)) == 1
        return run_dir

    return run


# Each of them has ended or hung a run, put its ranks on one core, or recorded another's code.
HOSTILE = {
    "PET_STANDALONE": "1",
    "PET_NO_PYTHON": "1",
    "PET_RUN_PATH": "1",
    "LOGLEVEL": "debug",
    "TORCH_DISTRIBUTED_DEBUG": "2",
    "NCCL_COMM_ID": "192.0.2.1:1",
    "RANK": "7",
    "WORLD_SIZE": "9",
    "MASTER_ADDR": "192.0.2.1",
    "MASTER_PORT": "1",
    "OMP_PROC_BIND": "true",
    "OMP_PLACES": "cores",
    "CDPATH": "/",
    "TORCHELASTIC_HEALTH_CHECK_PORT": "1",
    "KIT_STOP_FILE": "/x",
    "MAKEFLAGS": "n",
}
WITH_WORKERS = """import multiprocessing, os, torch
def tell(cores):
    print("worker", os.environ["MASTER_ADDR"], sorted(os.sched_getaffinity(0)) == cores)
if __name__ == "__main__":
    torch.ones(2)
    start = multiprocessing.get_context("forkserver").Process
    worker = start(target=tell, args=(sorted(range(os.cpu_count())),))
    worker.start()
    worker.join()
"""


@pytest.mark.slow
def test_a_hostile_environment_neither_ends_nor_binds_the_ranks(tmp_path, kit, run_script):
    long = tmp_path / ("x" * 90)
    long.mkdir()
    kit.env |= HOSTILE | {"TMPDIR": str(long), "GIT_DIR": str(tmp_path / "nowhere")}
    own = tmp_path / "own.py"
    own.write_text(WITH_WORKERS)
    spec = {"launch": {"script": str(own), "env": {"OMP_WAIT_POLICY": "passive"}}}
    run = run_script(spec)
    for rank in range(2):
        assert "worker 127.0.0.1 True" in run.rank_log(rank).read_text()
    assert read_json(run.provenance)["repository"] == str(tmp_path)  # the folder of the script


def check_interpreter(run, python):
    """All agents and ranks ran with this interpreter."""
    for rank in range(2):
        assert read_json(run.attempt(1).agent(rank))["interpreter"] == python
        assert f"interpreter {python} here 2.0" in run.rank_log(rank).read_text()
    started = [line for line in run.job_log.read_text().splitlines() if "--rdzv-backend" in line]
    assert started and all(f": {python} -" in line for line in started)


@pytest.mark.slow
@needs_venv
@pytest.mark.skipif(shutil.which("ch-run") is None, reason="charliecloud is not installed")
def test_the_recipe_for_charliecloud(tmp_path, run_script):
    """An image that is a directory: it has nothing of its own, and shows /usr and the packages."""
    image = tmp_path / "image"
    binds = {"/usr": "/usr", sys.base_prefix: sys.base_prefix, ENVIRONMENT: "/opt/venv"}
    for inside in (*binds.values(), "/dev", "/proc", "/sys", "/tmp", "/etc"):
        (image / inside.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (image / name).symlink_to(f"usr/{name}")
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        (image / "etc" / name).touch()
    prefix = ["ch-run", "--set-env=PREPARED=here"]
    prefix += [f"--bind={path}:{inside}" for path, inside in binds.items()]
    setup = ["export USER=${USER:-root}"]  # ch-run reads it
    launch = {"command_prefix": [*prefix, str(image), "--"], "python": "/opt/venv/bin/python3"}
    check_interpreter(run_script({"setup": setup, "launch": launch}), "/opt/venv/bin/python3")


@pytest.mark.slow
@needs_venv
@pytest.mark.skipif(not MODULES.exists(), reason="environment-modules is not installed")
def test_the_recipe_for_environment_modules(tmp_path, run_script):
    module = tmp_path / "modulefiles/pytorch"
    module.parent.mkdir()
    lines = [f"prepend-path PATH {ENVIRONMENT}/bin", "setenv PREPARED here"]
    module.write_text("\n".join(["#%Module", *lines]) + "\n")
    setup = [f"source {MODULES}", f"module use {module.parent}", "module load pytorch"]
    run = run_script({"setup": setup, "launch": {"python": "python3"}})
    check_interpreter(run, f"{ENVIRONMENT}/bin/python3")
