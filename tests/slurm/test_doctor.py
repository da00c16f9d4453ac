"""What doctor writes and queues on a site, and what becomes of a script by its site file."""

import sys
from pathlib import Path

import pytest
import yaml

from tests.core.run_files import answered

from .cluster import Cluster
from .host import IS_SITE
from .kit import REPOSITORY, Kit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not IS_SITE, reason="accounts: make test-on-slurm SITE=1"),
]


def test_a_site_file_counts_for_a_script_and_the_probe_says_what_the_site_does(
    cluster: Cluster, tmp_path: Path
) -> None:
    site, own = tmp_path / "site.yaml", tmp_path / "own"
    cluster.run_as_user("mkdir", own)
    cluster.run_as_user("bash", "-c", "echo 'print(1)' >train.py", cwd=own)
    kit = Kit(cluster, tmp_path / "runs", own)

    def jobs(*words: str) -> str:
        env = ("env", f"KIT_SITE={site}", f"PYTHONPATH={REPOSITORY}")
        return kit.run(*env, sys.executable, "-m", "jobs", *words, check=False).stdout

    jobs("doctor", "--write-site", "--probe")
    assert yaml.safe_load(site.read_text())["slurm"] == {"account": "lab", "partition": "batch"}
    said = answered(jobs("submit", "--json", "--", "python", "train.py"))
    assert cluster.job(said["job_id"])["Account"] == "lab"
    (log,) = cluster.wait_for(lambda: [*(tmp_path / "runs").glob("probe-*/job.log")], "the probe")
    cluster.wait_for(lambda: "batch script: end" in log.read_text(), log.read_text())
    for words in ("got SIGTERM", "start 2", "sees a new file", "all-reduce of 64 MiB by gloo"):
        assert words in log.read_text()
    cluster.wait_job(said["job_id"], "COMPLETED")
