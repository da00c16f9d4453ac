"""The second shape of the cluster is a site as users have it, and runs survive its preemptions."""

import sys
import tempfile
from pathlib import Path

import pytest

from .cluster import Cluster
from .faults import oracles
from .faults.scenario import ReferenceRuns, start
from .host import IS_SITE
from .kit import Kit

pytestmark = pytest.mark.skipif(
    not IS_SITE, reason="for the site's shape: make test-on-slurm SITE=1"
)
# Four ranks: two hide a wrong order of summation.
TWO_BY_TWO = ("slurm.nodes=2", "slurm.cpus_per_task=2", "launch.nproc_per_node=2")
NAMES = ("n[1-2]", "n[3-4]")
# Prints what a node sees of a file that another host has just made, and that it has looked for.
LOOK = """
import os, sys
path = sys.argv[1]
for _ in range(2):  # FUSE keeps a listing from the second one on
    os.listdir(os.path.dirname(path))
print(os.path.exists(path), flush=True)
sys.stdin.readline()
print(os.path.exists(path), os.path.basename(path) in os.listdir(os.path.dirname(path)))
os.close(os.open(path + ".mine", os.O_CREAT))
print(os.path.basename(path) in os.listdir(os.path.dirname(path)))
"""


def test_commands_and_jobs_are_those_of_ordinary_users(cluster: Cluster, tmp_path: Path) -> None:
    with tempfile.NamedTemporaryFile() as of_this_machine:
        seen = f"id -u; ls {of_this_machine.name} | wc -l; pgrep -c slurmd"
        said = cluster.run_as_user("srun", "bash", "-c", seen, check=False).stdout.split()
    assert said == ["2001", "0", "0"]  # another /tmp, no daemon of root
    mine = cluster.run_as_user("sbatch", "--parsable", "--wrap=sleep 300", cwd=tmp_path).stdout
    theirs = cluster.sbatch("--wrap=sleep 300", cwd=tmp_path)
    assert cluster.run_as_user("squeue", "-h", "-o%A").stdout == mine
    assert set(cluster.job_ids()) == {mine.strip(), theirs}
    assert cluster.job(theirs)["UserId"] == "other(2002)"


def test_a_node_sees_an_old_directory_until_it_changes_it_itself(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "look.py").write_text(LOOK)
    path = tmp_path / "made"
    argv = (sys.executable, tmp_path / "look.py", path)
    with cluster.running_on("n2", *argv) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "False\n"
        path.touch()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "False False\n"
        assert process.stdout.readline() == "True\n"


def test_preempted_twice_and_back_on_its_first_nodes_a_run_ends_with_the_same_bits(
    cluster: Cluster, tmp_path: Path, reference: ReferenceRuns
) -> None:
    """The first nodes have looked at the run directory within the time of their caches."""
    kit = Kit(cluster, tmp_path)
    cluster.restart(extra_conf="KillWait=30")
    expected = reference(*TWO_BY_TWO)
    paced = start(kit, *TWO_BY_TWO, "checkpoint.every_steps=5")
    taken = ""
    for attempt, names in enumerate(NAMES, 1):
        paced.run.wait_for_step(8 * attempt)
        if taken:
            cluster.run("scancel", taken)  # the first nodes are free again
        urgent = ("--partition=urgent", f"--nodelist={names}", "--exclusive", "--output=/dev/null")
        taken = cluster.sbatch(*urgent, "--nodes=2", "--wrap=sleep 600")
    cluster.wait_job(taken, "RUNNING", 120)
    paced.finish()
    oracles.bitwise(paced.run, expected)
    oracles.no_step_redone(paced.run)
    oracles.causes(paced.run, ["preemption", "preemption", "completed"])
    nodes = [attempt["nodes"] for attempt in paced.run.attempts()]
    assert nodes == [["n1", "n2"], ["n3", "n4"], ["n1", "n2"]]
