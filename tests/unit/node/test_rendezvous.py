"""The rendezvous of the agents: an address that other nodes can reach, and a free port."""

import socket

import pytest

from jobs.node import rendezvous
from jobs.node.rendezvous import RendezvousError


@pytest.fixture
def names(monkeypatch):
    """A resolver with these names, and routes with these source addresses."""

    def knows(hosts, sources=()):
        def getaddrinfo(host, *_):
            if host not in hosts:
                raise socket.gaierror(-2, "Name or service not known")
            return [(None, None, None, "", (address, 0)) for address in hosts[host]]

        def source_address(peer):
            if peer not in dict(sources):
                raise OSError(101, "Network is unreachable")
            return dict(sources)[peer]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        monkeypatch.setattr(rendezvous, "source_address", source_address)

    return knows


@pytest.fixture
def ephemeral(tmp_path, monkeypatch):
    def is_range(text):
        (tmp_path / "range").write_text(text)
        monkeypatch.setattr(rendezvous, "EPHEMERAL_RANGE", tmp_path / "range")

    return is_range


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "127.0.1.1", "169.254.3.4", "0.0.0.0", "224.0.0.1", "", "n1", "::1", "fe80::1"],
)
def test_no_other_node_could_reach(address):
    assert not rendezvous.is_reachable(address)


def test_the_resolved_address_of_the_first_node_is_taken():
    address, how = rendezvous.head_address("10.0.0.5", ["a", "b"])
    assert (address, how) == ("10.0.0.5", "address of a")


@pytest.mark.parametrize("resolved", ["", "127.0.1.1", "169.254.0.9"])
def test_else_the_way_to_another_node_tells(names, resolved):
    names({"b": ["127.0.1.1"], "c": ["10.0.0.7"]}, {"10.0.0.7": "10.0.0.5"})
    address, how = rendezvous.head_address(resolved, ["a", "b", "c"])
    assert (address, how) == ("10.0.0.5", "source address of a towards c")


@pytest.mark.parametrize(
    ("hosts", "sources"),
    [
        ({}, {}),
        ({"b": ["127.0.0.1"]}, {"127.0.0.1": "127.0.0.1"}),
        ({"b": ["10.0.0.7"]}, {}),
        ({"b": ["10.0.0.7"]}, {"10.0.0.7": "127.0.0.1"}),
        ({"b": ["10.0.0.7"]}, {"10.0.0.7": "169.254.0.9"}),
    ],
)
def test_nodes_that_cannot_meet_are_an_error_and_never_localhost(names, hosts, sources):
    names(hosts, sources)
    with pytest.raises(RendezvousError, match="a: its name resolves to no address .* to b\n"):
        rendezvous.head_address("127.0.1.1", ["a", "b"])


def test_a_single_node_may_meet_on_loopback():
    assert rendezvous.head_address("", ["a"]) == ("127.0.0.1", "loopback: the job has one node")


def test_a_port_is_outside_of_the_ephemeral_range(ephemeral):
    ephemeral("15000\t31990\n")
    ports = {rendezvous.choose_port("7", attempt) for attempt in range(20)}
    assert ports <= set(range(31991, 32000))


def test_a_port_follows_from_job_and_attempt():
    ports = {rendezvous.choose_port("7", attempt) for attempt in range(1, 9)}
    assert len(ports) > 4
    assert rendezvous.choose_port("7", 1) in ports


def test_a_taken_port_is_skipped():
    port = rendezvous.choose_port("7", 1)
    with socket.create_server(("", port)):
        assert not rendezvous.is_free(port)
        assert rendezvous.choose_port("7", 1) != port


def test_without_a_free_port_there_is_an_error(monkeypatch):
    monkeypatch.setattr(rendezvous, "is_free", lambda _: False)
    with pytest.raises(RendezvousError, match="no free port among 64"):
        rendezvous.choose_port("7", 1)


def test_the_ephemeral_range_is_the_kernels(ephemeral):
    ephemeral("40000\t50000\n")
    assert rendezvous.ephemeral_ports() == range(40000, 50001)


def test_the_interface_of_an_address_is_the_one_that_owns_it():
    assert rendezvous.interface_of("127.0.0.1") == "lo"
    assert rendezvous.interface_of("192.0.2.1") is None


def test_the_source_address_towards_this_host_is_loopback():
    assert rendezvous.source_address("127.0.0.1") == "127.0.0.1"


def test_a_public_address_is_refused_unless_the_spec_allows_it():
    rendezvous.check_private("10.0.0.1", is_allowed=False)
    rendezvous.check_private("8.8.8.8", is_allowed=True)
    with pytest.raises(RendezvousError, match=r"allow_public_rendezvous: true"):
        rendezvous.check_private("8.8.8.8", is_allowed=False)
