"""The addresses of this node's interfaces, and the interface that launch.interface selects."""

import socket

import pytest

from slurm_job_kit.jobs.base.errors import UserError
from slurm_job_kit.jobs.node import interfaces

needs_ipv6 = pytest.mark.skipif(
    not interfaces.IF_INET6.exists(), reason="the kernel of this machine has no IPv6"
)
# As the kernel prints it: in no order of interfaces; here the flags are what differs.
IF_INET6 = """\
fd000000000000000000000000000009 04 40 00 48     eth1
fe80000000000000acfd64fffec01f27 03 40 20 80 eth0
fd000000000000000000000000000004 04 40 00 20     eth1
fd000000000000000000000000000002 04 40 00 80     eth1
fd000000000000000000000000000001 03 40 00 82     eth0
00000000000000000000000000000001 01 80 10 80       lo
fd000000000000000000000000000003 04 40 00 01     eth1
"""
OWN = [
    *(("lo", "127.0.0.1"), ("eth0", "10.0.0.1"), ("eth0.100", "10.0.0.2"), ("eth10", "10.0.10.1")),
    *(("ib1", "10.1.1.1"), ("lo", "::1"), ("eth0", "fe80::1"), ("eth0", "2600:1f18::1")),
    *(("eth0", "fd00::1"), ("ib0", "fd00:1::1")),
]


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setattr(interfaces, "addresses", lambda: OWN)
    monkeypatch.setattr(socket, "gethostname", lambda: "n7")


@pytest.mark.parametrize(
    ("addresses", "is_reachable"),
    [
        ("127.0.0.1 127.0.1.1 169.254.3.4 0.0.0.0 224.0.0.1 n1 ::1 fe80::1", False),
        ("10.0.0.1 8.8.8.8 fd00::1 2600:1f18::1", True),
    ],
)
def test_another_node_could_reach(addresses, is_reachable):
    for address in addresses.split():
        assert interfaces.is_reachable(address) is is_reachable
    assert not interfaces.is_reachable("")


def test_the_interface_of_an_address_is_the_one_that_owns_it():
    assert interfaces.interface_of("127.0.0.1") == "lo"
    assert interfaces.interface_of("192.0.2.1") is None
    assert interfaces.interface_of("fd00:dead::1") is None


def test_an_address_of_this_host_is_its_own_also_without_an_interface_of_that_name():
    assert interfaces.is_own("127.0.0.1") and interfaces.is_own("127.0.0.9")
    assert not interfaces.is_own("198.51.100.7") and not interfaces.is_own("a-name")


@needs_ipv6
def test_an_ipv6_address_is_found_in_any_spelling():
    assert interfaces.interface_of("::1") == interfaces.interface_of("0:0:0:0:0:0:0:1") == "lo"
    assert interfaces.source_address("::1") == "::1"


def test_addresses_of_ipv6_that_are_not_in_use_are_left_out(tmp_path, monkeypatch):
    (tmp_path / "if_inet6").write_text(IF_INET6)
    monkeypatch.setattr(interfaces, "IF_INET6", tmp_path / "if_inet6")
    assert [pair for pair in interfaces.addresses() if ":" in pair[1]] == [
        ("lo", "::1"),
        ("eth0", "fe80::acfd:64ff:fec0:1f27"),
        ("eth0", "fd00::1"),
        ("eth1", "fd00::2"),
        ("eth1", "fd00::3"),
    ]


@pytest.mark.parametrize(
    ("wanted", "head", "expected"),
    [
        ("eth0", None, ("eth0", "10.0.0.1")),
        ("eth0.", None, ("eth0.100", "10.0.0.2")),
        ("eth", "10.0.0.9", ("eth0", "10.0.0.1")),
        ("eth0", "fd00::9", ("eth0", "fd00::1")),
        ("ib", None, ("ib1", "10.1.1.1")),
        ("ib", "fd00::9", ("ib0", "fd00:1::1")),
    ],
)
def test_a_name_or_its_beginning_selects_an_interface_with_an_address(own, wanted, head, expected):
    assert interfaces.choose(wanted, head) == expected


@pytest.mark.parametrize(
    ("wanted", "head", "kind"),
    [
        ("hsn", None, "an address"),
        ("lo", None, "an address"),
        ("ib0", "10.0.0.9", "an IPv4 address"),
        ("ib1", "fd00::9", "an IPv6 address"),
    ],
)
def test_a_node_without_such_an_interface_lists_those_that_it_has(own, wanted, head, kind):
    with pytest.raises(UserError) as caught:
        interfaces.choose(wanted, head)
    first, hint = str(caught.value).split("\n")
    assert first == (
        f"n7: launch.interface: {wanted} is no interface with {kind} that other nodes could "
        "reach; the node has lo 127.0.0.1, eth0 10.0.0.1, eth0.100 10.0.0.2, eth10 10.0.10.1, "
        "ib1 10.1.1.1, lo ::1, eth0 fe80::1, eth0 2600:1f18::1, eth0 fd00::1, ib0 fd00:1::1"
    )
    assert hint.startswith("  hint: ")
