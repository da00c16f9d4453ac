"""Nodes meet on IPv6 where their names lead there, and on the interface of launch.interface."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_job_kit.jobs.rundir import read_json

from .cluster import Cluster
from .kit import Kit, Run

CANCER = "configs/cancer.yaml"


@pytest.fixture
def kit(cluster: Cluster, tmp_path: Path) -> Kit:
    return Kit(cluster, tmp_path)


def assert_met_on_data_network(run: Run, nodes: tuple[str, str], how: str) -> None:
    """The rendezvous and the ranks of both nodes used data0, which has IPv6 only."""
    run.wait()
    assert (run.result()["status"], run.result()["attempts"]) == ("completed", 1)
    first, second = (run.cluster.site.data_address(node) for node in nodes)
    plan = read_json(run.dir.attempt(1).plan)
    assert (plan["head_address"], plan["head_address_is"]) == (first, f"{how} {nodes[0]}")
    assert plan["rdzv_endpoint"].startswith(f"[{first}]:")
    agents = [read_json(run.dir.attempt(1).agent(rank)) for rank in range(2)]
    assert [agent["address"] for agent in agents] == [first, second]


def test_nodes_meet_on_ipv6_by_their_names_and_by_the_interface_of_the_spec(kit: Kit) -> None:
    """Two runs at once: n3 and n4 have names for IPv6 only; n1 takes its name for 127.0.1.1."""
    kit.cluster.name_by_ipv6("n3", "n4")
    nodelist = "slurm.sbatch_args.nodelist"
    small = ("slurm.nodes=2", "train.epochs=1")
    by_name = kit.submit(CANCER, *small, f'{nodelist}="n[3-4]"')
    by_interface = kit.submit(CANCER, *small, f'{nodelist}="n[1-2]"', "launch.interface=data")
    assert_met_on_data_network(by_name, ("n3", "n4"), "address of")
    assert_met_on_data_network(by_interface, ("n1", "n2"), "data0 of")


def test_a_node_without_the_interface_is_named_with_those_that_it_has(kit: Kit) -> None:
    run = kit.submit(CANCER, "slurm.nodes=2", "launch.interface=ib0")
    node = run.wait("FAILED")["BatchHost"]
    site = kit.cluster.site
    own = f"eth0 {site.address(node)}, lo ::1"
    log = run.dir.job_log.read_text()
    assert f"error: {node}: launch.interface: ib0 is no interface with an address" in log
    assert own in log and f"data0 {site.data_address(node)}" in log
    assert run.attempts() == []
