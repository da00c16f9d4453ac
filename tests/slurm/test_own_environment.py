"""Setup lines and another interpreter on Slurm: on every node, with failures recorded."""

import json
import os
import sys
from pathlib import Path

import pytest

from slurm_job_kit.jobs.rundir import read_json

from .cluster import Cluster
from .host import OWN_MOUNTS
from .kit import TABLE, Kit

# Hides the environment of this Python, and shows the same packages at another path.
CONTAIN = """#!/bin/sh
exec {unshare} sh -c '
mount --bind "$1" "$2" && mount -t tmpfs none "$1" || exit 9
shift 2
exec "$@"
' sh '{host}' '{image}' "$@"
"""


@pytest.mark.slow
def test_setup_and_interpreter_of_an_image_on_every_node(cluster: Cluster, tmp_path: Path) -> None:
    """The setup lines fail once, on the second node; then agents and ranks see the image only."""
    kit, image, contain = Kit(cluster, tmp_path / "runs"), tmp_path / "image", tmp_path / "contain"
    for folder in (kit.runs_root, image):
        folder.mkdir()
    names = {"unshare": OWN_MOUNTS, "host": os.path.realpath(sys.prefix), "image": image}
    contain.write_text(CONTAIN.format_map(names))
    contain.chmod(0o755)
    once = f"[[ $SLURMD_NODENAME != n2 || -e {tmp_path}/failed ]]"
    # Slurm ends n1's setup lines when n2 fails, so n2 waits for n1's line.
    wait = f"until [[ -e {tmp_path}/prepared-n1 ]]; do sleep 0.1; done"
    fail = f"{once} || {{ {wait}; touch {tmp_path}/failed; echo no data here; false; }}"
    prepare = f'echo "prepared on $SLURMD_NODENAME"; touch {tmp_path}/prepared-$SLURMD_NODENAME'
    setup = [f"export PATH={image}/bin:$PATH", prepare, fail]
    words = (f"setup={json.dumps(setup)}", f'launch.command_prefix=["{contain}"]')
    run = kit.submit(TABLE, "train.epochs=1", *words)
    run.wait()
    first, second = run.attempts()
    reason = "n2: setup: exit code 1: no data here"
    assert (first["cause"], first["decision"], first["reason"]) == ("crash", "retry", reason)
    assert second["decision"] == "done"
    for node in range(2):
        assert read_json(run.dir.attempt(2).agent(node))["interpreter"] == f"{image}/bin/python3"
        for attempt in (1, 2):
            said = run.dir.attempt(attempt).setup_log(node).read_text()
            assert said.count(f"prepared on n{node + 1}\n") == 1
    assert run.dir.job_log.read_text().count("prepared on n2\n") == 2
