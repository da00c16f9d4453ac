"""Slurm's lists of nodes."""

import pytest

from slurm_job_kit.jobs.slurm.hostlist import expand_hostlist


@pytest.mark.parametrize(
    "hostlist, nodes",
    [
        ("", []),
        ("(null)", []),
        ("n1", ["n1"]),
        ("n[1-3,7],m4", ["n1", "n2", "n3", "n7", "m4"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]n[3,5]-ib", ["r1n3-ib", "r1n5-ib", "r2n3-ib", "r2n5-ib"]),
    ],
)
def test_a_list_of_nodes_is_expanded(hostlist, nodes):
    assert expand_hostlist(hostlist) == nodes
