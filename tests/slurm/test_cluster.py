"""The test cluster behaves like a real one of several hosts."""

from pathlib import Path

import pytest

from .cluster import Cluster

# A task and a descendant of it in another session, like a rank under torchrun; each records the
# signals that it received.
_FAMILY = """#!/bin/bash
listen() { trap "touch $1.usr1" USR1; touch "$1.ready"; while :; do sleep 0.1; done; }
export -f listen
setsid bash -c 'listen rank' &
listen task
"""


@pytest.mark.parametrize(
    ("proctrack", "receivers"),
    [("linuxproc", {"task", "rank"}), ("pgid", {"task"}), ("cgroup", {"task"})],
)
def test_proctrack_decides_who_receives_a_signal(
    cluster: Cluster, tmp_path: Path, proctrack: str, receivers: set[str]
) -> None:
    cluster.restart(proctrack=proctrack)
    script = tmp_path / "family.sh"
    script.write_text(_FAMILY)
    script.chmod(0o755)
    job_id = cluster.sbatch(stdin=f"#!/bin/bash\nsrun {script}\n", cwd=tmp_path)
    cluster.wait_for(lambda: len(list(tmp_path.glob("*.ready"))) == 2, "both ready")
    cluster.run("scancel", "--signal=USR1", job_id)
    cluster.wait_for(lambda: list(tmp_path.glob("task.usr1")), "the task has the signal")
    if "rank" in receivers:
        cluster.wait_for(lambda: list(tmp_path.glob("rank.usr1")), "the rank has it too")
    assert {path.stem for path in tmp_path.glob("*.usr1")} == receivers
