"""The rendezvous of the agents: an address that other nodes can reach, and a free port."""

import errno
import os
import signal
import socket
import time

import pytest

from slurm_job_kit.jobs.base.errors import UserError
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.nodes import AttemptPlan, Head
from slurm_job_kit.jobs.node import interfaces, rendezvous
from tests.core import run_files

JOB = str(os.getpid())  # whose ports no other process of these tests takes


@pytest.fixture
def names(monkeypatch):
    """A resolver with these names, and routes with these source addresses."""

    def knows(hosts, sources=(), own=None):
        def getaddrinfo(host, *_, **__):
            if host not in hosts:
                raise socket.gaierror(-2, "Name or service not known")
            return [(None, None, None, "", (address, 0)) for address in hosts[host]]

        def source_address(peer):
            if peer not in dict(sources):
                raise OSError(101, "Network is unreachable")
            return dict(sources)[peer]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        monkeypatch.setattr(interfaces, "source_address", source_address)
        monkeypatch.setattr(interfaces, "is_own", lambda address: own is None or address in own)

    return knows


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
    ],
)
def test_nodes_that_cannot_meet_are_an_error_and_never_localhost(names, hosts, sources):
    names(hosts, sources)
    with pytest.raises(UserError, match="^a: neither its name .* to b; the node has "):
        rendezvous.head_address("127.0.1.1", ["a", "b"], None, lambda _: {"a": "a", "b": "b"})


@pytest.mark.parametrize("resolved", ["", "127.0.1.1", "10.9.9.9"])
@pytest.mark.parametrize(
    ("node_addresses", "expected"),
    [
        ({"a": "10.0.0.5", "b": "10.0.0.7"}, ("10.0.0.5", "NodeAddr of a")),
        ({"a": "vm-5", "b": "vm-7"}, ("10.0.0.5", "NodeAddr of a")),
        ({"a": "localhost", "b": "10.0.0.7"}, ("10.0.0.5", "source address of a towards b")),
        ({"b": "vm-7"}, ("10.0.0.5", "source address of a towards b")),
    ],
)
def test_the_address_of_slurm_is_taken_where_the_name_leads_nowhere(
    names, resolved, node_addresses, expected
):
    """DNS does not know the node, /etc/hosts has 127.0.1.1, or another host has its name."""
    hosts = {"10.0.0.5": ["10.0.0.5"], "10.0.0.7": ["10.0.0.7"], "localhost": ["127.0.0.1"]}
    hosts |= {"vm-5": ["10.0.0.5"], "vm-7": ["10.0.0.7"]}
    names(hosts, {"10.0.0.7": "10.0.0.5"}, own=["10.0.0.5"])
    address = rendezvous.head_address(resolved, ["a", "b"], None, lambda _: node_addresses)
    assert address == expected


def test_slurm_is_not_asked_where_the_name_leads_to_the_node(names):
    names({})

    def ask(_):
        raise AssertionError

    assert rendezvous.head_address("10.0.0.5", ["a", "b"], None, ask)[0] == "10.0.0.5"
    assert rendezvous.head_address("", ["a"], None, ask)[0] == "127.0.0.1"


@pytest.fixture
def second_node(monkeypatch):
    """The answer of the first node to a second one, which has the interface eth0 10.0.0.7."""

    def answers(error=None, own=(), plan=()):
        def create_connection(address, _timeout):
            assert address == ("10.0.0.1", 15000)
            if error is not None:
                raise error
            return socket.socket()

        for limit in ("REACH_LIMIT_S", "PAUSE_S"):
            monkeypatch.setattr(rendezvous, limit, 0.05)
        monkeypatch.setattr(socket, "create_connection", create_connection)
        monkeypatch.setattr(interfaces, "addresses", lambda: [*own, ("eth0", "10.0.0.7")])
        head = run_files.plan()["head"] | {"interfaces": ["eth9 10.0.0.1"]} | dict(plan)
        return rendezvous.why_unreachable(
            records.decode(AttemptPlan, run_files.plan(head=head), "here")
        )

    return answers


@pytest.mark.parametrize("error", [None, ConnectionRefusedError()])
def test_a_first_node_that_answers_is_reachable_before_its_store_listens(second_node, error):
    assert second_node(error) is None


@pytest.mark.parametrize(
    "error", [TimeoutError("timed out"), OSError(errno.EHOSTUNREACH, "No route to host")]
)
def test_a_first_node_that_does_not_answer_is_named_with_the_interfaces_of_both(second_node, error):
    start = time.monotonic()
    text = second_node(error)
    assert time.monotonic() - start < 60
    for part in ("10.0.0.1:15000", str(error), "a has eth9 10.0.0.1", "has eth0 10.0.0.7"):
        assert part in text


def test_a_stop_signal_ends_the_wait_for_the_first_node(second_node):
    was_blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        signal.raise_signal(signal.SIGTERM)
        assert second_node(TimeoutError("timed out")) is None
    finally:
        signal.sigwait([signal.SIGTERM])
        signal.pthread_sigmask(signal.SIG_SETMASK, was_blocked)


def test_an_address_that_both_nodes_have_leads_to_no_other_node(second_node):
    own = [("docker0", "10.0.0.1")]
    assert "docker0 of this node has this address, too" in second_node(own=own)
    on_one_machine = {"interfaces": ["docker0 10.0.0.1", "eth0 10.0.0.7"]}
    assert second_node(own=own, plan=on_one_machine) is None


def test_over_loopback_all_nodes_are_reachable(second_node):
    head = {"address": "127.0.0.1"}
    assert second_node(OSError(), plan=head) is None


@pytest.mark.parametrize(
    ("resolved", "hosts", "expected"),
    [
        ("fd00::5", {}, ("fd00::5", "address of a")),
        ("fd00::5", {"b": ["10.0.0.7"]}, ("10.0.0.5", "source address of a towards b")),
        ("", {"b": ["fd00::7"]}, ("fd00::6", "source address of a towards b")),
        ("fe80::1", {"b": ["fd00::7"]}, ("fd00::6", "source address of a towards b")),
        ("", {"b": ["fd00::7", "10.0.0.7"]}, ("10.0.0.5", "source address of a towards b")),
    ],
)
def test_ipv6_is_taken_where_no_ipv4_leads_to_the_nodes(names, resolved, hosts, expected):
    names(hosts, {"10.0.0.7": "10.0.0.5", "fd00::7": "fd00::6"})
    assert rendezvous.head_address(resolved, ["a", "b"]) == expected


def test_the_interface_of_the_spec_comes_before_the_name_of_the_node(monkeypatch):
    monkeypatch.setattr(interfaces, "addresses", lambda: [("eth0", "10.0.0.5"), ("ib0", "fd00::1")])
    assert rendezvous.head_address("10.0.0.5", ["a", "b"], "ib") == ("fd00::1", "ib0 of a")


@pytest.mark.parametrize(
    ("address", "endpoint"), [("10.0.0.1", "10.0.0.1:15000"), ("fd00::1", "[fd00::1]:15000")]
)
def test_torchrun_reads_the_endpoint_of_either_protocol(address, endpoint):
    utils = pytest.importorskip("torch.distributed.elastic.rendezvous.utils")
    assert Head(address, "", 15000).endpoint == endpoint
    assert utils.parse_rendezvous_endpoint(endpoint, 1) == (address, 15000)


def test_a_port_follows_from_job_and_attempt():
    ports = {rendezvous.choose_port(JOB, attempt) for attempt in range(1, 9)}
    assert len(ports) > 4
    assert rendezvous.choose_port(JOB, 1) in ports


def test_a_taken_port_is_skipped():
    port = rendezvous.choose_port(JOB, 1)
    with socket.create_server(("", port)):
        assert not rendezvous.is_free(port)
        assert rendezvous.choose_port(JOB, 1) != port


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="the kernel has no IPv6")
@pytest.mark.parametrize("is_dualstack", [False, True])
def test_a_port_that_is_taken_on_ipv6_alone_is_skipped(is_dualstack):
    port = rendezvous.choose_port(JOB, 1)
    address = ("", port)
    with socket.create_server(address, family=socket.AF_INET6, dualstack_ipv6=is_dualstack):
        assert not rendezvous.is_free(port)
    assert rendezvous.is_free(port)


@pytest.mark.parametrize(
    ("private", "public"), [("10.0.0.1", "8.8.8.8"), ("fd00::1", "2600:1f18::1")]
)
def test_a_public_address_is_refused_unless_the_spec_allows_it(private, public):
    rendezvous.check_private(private, is_allowed=False)
    rendezvous.check_private(public, is_allowed=True)
    with pytest.raises(UserError, match=r"allow_public_rendezvous: true"):
        rendezvous.check_private(public, is_allowed=False)
