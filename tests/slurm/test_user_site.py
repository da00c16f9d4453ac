"""The second shape of the cluster is a site as users have it, and runs survive its preemptions."""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from .cluster import Cluster
from .faults import oracles
from .faults.scenario import AT_ONCE, ReferenceRuns, start
from .host import IS_SITE
from .kit import JOB_TIMEOUT_S, Kit
from .user_cluster import UserCluster
from .user_site import GROUP_ID, OTHER, STUDENT, User

pytestmark = pytest.mark.skipif(
    not IS_SITE, reason="for the site's shape: make test-on-slurm SITE=1"
)
# Four ranks: two hide a wrong order of summation.
TWO_BY_TWO = ("slurm.nodes=2", "slurm.cpus_per_task=2", "launch.nproc_per_node=2")
NAMES = ("n[1-2]", "n[3-4]")


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


@dataclass(frozen=True)
class UserKit(Kit):
    """The kit's commands of one of the users, with an umask of that user's shell."""

    user: User = STUDENT
    umask: str = "0022"

    def run(
        self, *argv: str | Path, check: bool = True, timeout_s: float = JOB_TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the repository."""
        words = 'umask "$1"; export KIT_RUNS=$2 KIT_PYTHON=$3; cd "$4"; shift 4; exec "$@"'
        settings = (self.umask, self.runs_root, sys.executable, self.repository)
        shell = cast(UserCluster, self.cluster).shell(self.user)
        command = [*shell, "-c", words, "bash", *map(str, (*settings, *argv))]
        return subprocess.run(
            command, capture_output=True, text=True, check=check, timeout=timeout_s
        )


def test_two_users_submit_into_one_root_and_one_begins_a_run_from_the_others(
    cluster: Cluster, tmp_path: Path, reference: ReferenceRuns
) -> None:
    """With the usual umask and with that of a group."""
    root = tmp_path / "shared"
    root.mkdir()
    os.chown(root, STUDENT.id, GROUP_ID)
    root.chmod(0o2770)
    mine, theirs = UserKit(cluster, root), UserKit(cluster, root, user=OTHER, umask="0002")
    expected = reference(*TWO_BY_TWO)
    words = (*TWO_BY_TWO, "checkpoint.every_steps=5", "dir_mode='0750'")
    run = start(mine, *words).run
    run.wait_for_step(6)
    mine.jobs("cancel", run.dir.path)
    run.wait("CANCELLED")
    refused = theirs.jobs("resume", run.dir.path, check=False)
    assert refused.returncode == 2 and f"belongs to user {mine.user.name}" in refused.stderr
    own = start(theirs, *words, "--from", str(run.dir.path), "--yes", pace=AT_ONCE).run
    assert own.dir.path.parent == run.dir.path.parent
    assert own.dir.code.resolve() != run.dir.code.resolve()
    own.wait()
    for name in ("global_step", "weights_sha256", "optimizer_sha256"):
        assert own.result()[name] == expected.result()[name]
    assert {path.lstat().st_gid for path in root.rglob("*")} == {GROUP_ID}
    # The copy of the code of a run that is queued belongs to another user meanwhile.
    held = start(mine, *words, "slurm.sbatch_args.hold=true").run
    os.chown(held.dir.code.resolve(), OTHER.id, -1)
    cluster.run("scontrol", "release", held.job_id)
    held.wait("FAILED")
    text = held.dir.job_log.read_text()
    assert "code/ is of user other" in text and "submit ... --from" in text
    assert not held.dir.attempts.exists()
