"""Nodes meet where their names lead, else at Slurm's NodeAddr, or on launch.interface."""

import pytest

from slurm_job_kit.jobs.base.files import read_json

from .host import IS_SITE
from .kit import TABLE, Kit, Run


def assert_met_at(run: Run, addresses: list[str], how: str) -> None:
    """The rendezvous and the ranks of both nodes used these addresses, found in this way."""
    run.wait()
    assert (run.result()["status"], run.result()["attempts"]) == ("completed", 1)
    plan = read_json(run.dir.attempt(1).plan)
    assert (plan["head"]["address"], plan["head"]["how"]) == (addresses[0], how)
    agents = [read_json(run.dir.attempt(1).agent(rank)) for rank in range(2)]
    assert [agent["address"] for agent in agents] == addresses


@pytest.mark.slow
def test_nodes_meet_on_ipv6_by_their_names_and_by_the_interface_of_the_spec(kit: Kit) -> None:
    """Two runs at once: n3 and n4 have names for IPv6 only; n1 takes its name for 127.0.1.1.

    data0 has IPv6 only. On the site DNS does not know the names, so Slurm's IPv4 addresses count.
    """
    site = kit.cluster.site
    kit.cluster.name_by_ipv6("n3", "n4")
    nodelist = "slurm.sbatch_args.nodelist"
    small = ("slurm.nodes=2", "train.epochs=1")
    by_name = kit.submit(TABLE, *small, f'{nodelist}="n[3-4]"')
    by_interface = kit.submit(TABLE, *small, f'{nodelist}="n[1-2]"', "launch.interface=data")
    named, how = (site.address, "NodeAddr") if IS_SITE else (site.data_address, "address")
    assert_met_at(by_name, [named("n3"), named("n4")], f"{how} of n3")
    assert_met_at(by_interface, [site.data_address(node) for node in ("n1", "n2")], "data0 of n1")
